use std::cmp::Ordering;
use std::fmt;
use std::iter::Sum;
use std::ops::{Add, Sub};
use std::str::FromStr;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;

const NANO: i128 = 1_000_000_000;

/// How a quantity was written, which is how it is written back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    /// `Ki`, `Mi`, ...
    Binary,
    /// `n`, `u`, `m`, `k`, `M`, ...
    Decimal,
    /// `1e3`.
    Exponent,
}

/// A resource quantity (`100m`, `1.5Gi`, `2e3`), exact to a billionth; finer amounts are rounded
/// up, as the Kubernetes API specifies.
#[derive(Clone, Copy, Debug)]
pub struct Quantity {
    nanos: i128,
    format: Format,
}

/// A text that is no quantity.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "quantities must match the regular expression \
     '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$', got {text:?}"
)]
pub struct ParseQuantityError {
    /// The text.
    pub text: String,
}

impl Quantity {
    /// Zero.
    pub const ZERO: Self = Self { nanos: 0, format: Format::Decimal };

    /// A whole number in decimal notation, such as a count of pods.
    pub fn from_units(units: i64) -> Self {
        Self { nanos: i128::from(units) * NANO, format: Format::Decimal }
    }

    /// Thousandths, such as CPU time.
    pub fn from_milli(milli: i64) -> Self {
        Self { nanos: i128::from(milli) * (NANO / 1000), format: Format::Decimal }
    }

    /// Bytes in binary notation, such as memory.
    pub fn from_bytes(bytes: i64) -> Self {
        Self { nanos: i128::from(bytes) * NANO, format: Format::Binary }
    }

    /// The amount rounded up to a whole number, saturating at the range of `i64`.
    pub fn value(&self) -> i64 {
        saturate(div_ceil(self.nanos, NANO))
    }

    /// The amount in thousandths, rounded up, saturating.
    pub fn milli_value(&self) -> i64 {
        saturate(div_ceil(self.nanos, NANO / 1000))
    }

    /// The amount divided by `divisor` and rounded up; a zero divisor counts as one.
    pub fn divided_by(&self, divisor: &Quantity) -> i64 {
        let divisor = if divisor.nanos == 0 { NANO } else { divisor.nanos };
        saturate(div_ceil(self.nanos, divisor))
    }

    /// It is nothing.
    pub fn is_zero(&self) -> bool {
        self.nanos == 0
    }

    /// It is below zero.
    pub fn is_negative(&self) -> bool {
        self.nanos < 0
    }

    /// The API's wire form, canonical.
    pub fn to_api(&self) -> ApiQuantity {
        ApiQuantity(self.to_string())
    }
}

fn saturate(value: i128) -> i64 {
    i64::try_from(value).unwrap_or(if value < 0 { i64::MIN } else { i64::MAX })
}

fn div_ceil(value: i128, divisor: i128) -> i128 {
    let (quotient, rest) = (value.div_euclid(divisor), value.rem_euclid(divisor));
    if rest == 0 { quotient } else { quotient + 1 }
}

impl FromStr for Quantity {
    type Err = ParseQuantityError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse(text).ok_or_else(|| ParseQuantityError { text: text.to_owned() })
    }
}

fn parse(text: &str) -> Option<Quantity> {
    let (negative, unsigned) = match text.as_bytes().first()? {
        b'+' => (false, &text[1..]),
        b'-' => (true, &text[1..]),
        _ => (false, text),
    };
    let digits_end =
        unsigned.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(unsigned.len());
    let (number, suffix) = unsigned.split_at(digits_end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if fraction.contains('.') || (whole.is_empty() && fraction.is_empty()) {
        return None;
    }
    let (multiplier, divisor, format): (i128, i128, Format) = match suffix {
        "" => (NANO, 1, Format::Decimal),
        "n" => (1, 1, Format::Decimal),
        "u" => (1_000, 1, Format::Decimal),
        "m" => (1_000_000, 1, Format::Decimal),
        "k" => (NANO * 1_000, 1, Format::Decimal),
        "M" => (NANO * 1_000_000, 1, Format::Decimal),
        "G" => (NANO * NANO, 1, Format::Decimal),
        "T" => (NANO * NANO * 1_000, 1, Format::Decimal),
        "P" => (NANO * NANO * 1_000_000, 1, Format::Decimal),
        "E" => (NANO * NANO * NANO, 1, Format::Decimal),
        "Ki" => (NANO << 10, 1, Format::Binary),
        "Mi" => (NANO << 20, 1, Format::Binary),
        "Gi" => (NANO << 30, 1, Format::Binary),
        "Ti" => (NANO << 40, 1, Format::Binary),
        "Pi" => (NANO << 50, 1, Format::Binary),
        "Ei" => (NANO << 60, 1, Format::Binary),
        _ => {
            let exponent: i32 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
            if exponent > 18 {
                (
                    NANO.checked_mul(10i128.checked_pow(u32::try_from(exponent).ok()?)?)?,
                    1,
                    Format::Exponent,
                )
            } else if exponent >= -9 {
                (10i128.pow(u32::try_from(exponent + 9).ok()?), 1, Format::Exponent)
            } else {
                (1, 10i128.checked_pow(u32::try_from(-exponent - 9).ok()?)?, Format::Exponent)
            }
        }
    };
    let mut nanos: i128 = 0;
    if !whole.is_empty() {
        nanos = whole.parse::<i128>().ok()?.checked_mul(multiplier)?;
        nanos = div_ceil(nanos, divisor);
    }
    let fraction = fraction.trim_end_matches('0');
    if !fraction.is_empty() {
        // Eighteen digits are far below a billionth of any unit in use; more only round up.
        let kept = &fraction[..fraction.len().min(18)];
        let scale = 10i128.checked_pow(u32::try_from(kept.len()).ok()?)?;
        let mut part = kept.parse::<i128>().ok()?;
        if fraction.len() > kept.len() {
            part += 1;
        }
        let product = part.checked_mul(multiplier).map_or_else(
            || (multiplier / scale).checked_mul(part),
            |product| Some(div_ceil(product, scale)),
        )?;
        nanos = nanos.checked_add(div_ceil(product, divisor))?;
    }
    Some(Quantity { nanos: if negative { -nanos } else { nanos }, format })
}

impl TryFrom<&ApiQuantity> for Quantity {
    type Error = ParseQuantityError;

    fn try_from(api: &ApiQuantity) -> Result<Self, Self::Error> {
        api.0.parse()
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.nanos == 0 {
            return f.write_str("0");
        }
        let whole = self.nanos % NANO == 0;
        let units = self.nanos / NANO;
        if self.format == Format::Binary && whole && units.abs() >= 1024 {
            let mut amount = units;
            let mut suffix = "";
            for next in ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"] {
                if amount % 1024 != 0 {
                    break;
                }
                amount /= 1024;
                suffix = next;
            }
            return write!(f, "{amount}{suffix}");
        }
        let suffixes: [(i128, &str, &str); 10] = [
            (NANO * NANO * NANO, "E", "e18"),
            (NANO * NANO * 1_000_000, "P", "e15"),
            (NANO * NANO * 1_000, "T", "e12"),
            (NANO * NANO, "G", "e9"),
            (NANO * 1_000_000, "M", "e6"),
            (NANO * 1_000, "k", "e3"),
            (NANO, "", ""),
            (1_000_000, "m", "e-3"),
            (1_000, "u", "e-6"),
            (1, "n", "e-9"),
        ];
        for (unit, decimal, exponent) in suffixes {
            if self.nanos % unit == 0 {
                let suffix = if self.format == Format::Exponent { exponent } else { decimal };
                return write!(f, "{}{suffix}", self.nanos / unit);
            }
        }
        Ok(())
    }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.nanos == other.nanos
    }
}

impl Eq for Quantity {}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> Ordering {
        self.nanos.cmp(&other.nanos)
    }
}

impl Add for Quantity {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        let format = if self.nanos == 0 { other.format } else { self.format };
        Self { nanos: self.nanos.saturating_add(other.nanos), format }
    }
}

impl Sub for Quantity {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        let format = if self.nanos == 0 { other.format } else { self.format };
        Self { nanos: self.nanos.saturating_sub(other.nanos), format }
    }
}

impl Sum for Quantity {
    fn sum<I: Iterator<Item = Self>>(iter: I) -> Self {
        iter.fold(Self::ZERO, Add::add)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn quantity(text: &str) -> Quantity {
        text.parse().unwrap()
    }

    #[test]
    fn values_are_rounded_up() {
        for (text, value, milli) in [
            ("0", 0, 0),
            ("1", 1, 1000),
            ("100m", 1, 100),
            ("1.5", 2, 1500),
            ("0.5Gi", 536_870_912, 536_870_912_000),
            ("1Ki", 1024, 1_024_000),
            ("2e3", 2000, 2_000_000),
            ("2E3", 2000, 2_000_000),
            ("3E", 3_000_000_000_000_000_000, i64::MAX),
            ("1n", 1, 1),
            ("1e-12", 1, 1),
            ("+5k", 5000, 5_000_000),
            ("-1500m", -1, -1500),
            (".5", 1, 500),
            ("5.", 5, 5000),
            ("0.0000000000000000000001", 1, 1),
        ] {
            let parsed = quantity(text);
            assert_eq!((parsed.value(), parsed.milli_value()), (value, milli), "{text}");
        }
    }

    #[test]
    fn nonsense_is_an_error() {
        for text in ["", "abc", "1.2.3", "1Kb", "1 Ki", "--1", ".", "1e", "1e99999", "٣", "1i"] {
            assert!(text.parse::<Quantity>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn rendering_is_canonical_in_the_written_notation() {
        for (text, expected) in [
            ("1000m", "1"),
            ("1024Ki", "1Mi"),
            ("1500m", "1500m"),
            ("1.5Gi", "1536Mi"),
            ("1000", "1k"),
            ("0.1", "100m"),
            ("1000e3", "1e6"),
            ("100", "100"),
            ("100Mi", "100Mi"),
            ("0Ki", "0"),
        ] {
            assert_eq!(quantity(text).to_string(), expected, "{text}");
        }
    }

    #[test]
    fn division_rounds_up() {
        assert_eq!(quantity("1500m").divided_by(&quantity("1")), 2);
        assert_eq!(quantity("1500m").divided_by(&quantity("1m")), 1500);
        assert_eq!(quantity("10Mi").divided_by(&quantity("1Mi")), 10);
        assert_eq!(quantity("3").divided_by(&quantity("0")), 3);
    }

    proptest! {
        #[test]
        fn rendering_parses_back_to_the_same_amount(milli in any::<i64>()) {
            let original = Quantity::from_milli(milli);
            prop_assert_eq!(quantity(&original.to_string()), original);
        }

        #[test]
        fn no_text_panics(text in "\\PC{0,24}") {
            let _ = text.parse::<Quantity>();
        }
    }
}
