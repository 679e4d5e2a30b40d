use std::cmp::Ordering;

use serde::{Deserialize, Serialize};

use super::decimal::Decimal;

/// Longest text, and largest power of ten, that is worked out; beyond that stands no resource.
const MAX_LENGTH: usize = 1000;
/// Decimal digits that an `i64` surely holds.
const SURE_DIGITS: usize = 18;
/// Finer amounts do not exist.
const NANO: i32 = -9;
const MILLI: i32 = -3;

/// The memory of a Go `resource.Quantity`: equal amounts differ in it by how they were written and
/// what was done with them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct GoQuantity {
    value: i64,
    /// Power of ten of `value`.
    scale: i32,
    /// Instead of `value` and `scale` where those are too small.
    decimal: Option<Decimal>,
    /// The text it was parsed from, where that is known to be canonical.
    cached: String,
    format: String,
}

const DECIMAL_SI: &str = "DecimalSI";
const DECIMAL_EXPONENT: &str = "DecimalExponent";
const BINARY_SI: &str = "BinarySI";

impl GoQuantity {
    /// What no quantity was ever written to.
    pub(super) fn unset() -> Self {
        Self { value: 0, scale: 0, decimal: None, cached: String::new(), format: String::new() }
    }

    fn small(value: i64, scale: i32, cached: &str, format: &str) -> Self {
        Self { value, scale, decimal: None, cached: cached.to_owned(), format: format.to_owned() }
    }

    /// Text that is no quantity stands for itself; such a pod is refused by both kubelets.
    pub(super) fn of_text(text: &str) -> Self {
        parse(text.trim()).unwrap_or_else(|| Self { cached: text.to_owned(), ..Self::unset() })
    }

    fn to_decimal(&self) -> Decimal {
        match &self.decimal {
            Some(decimal) => decimal.clone(),
            None => Decimal::from_i64(self.value, -self.scale),
        }
    }

    fn promote(&mut self) {
        self.decimal = Some(self.to_decimal());
        (self.value, self.scale) = (0, 0);
    }

    /// The API keeps nothing finer than a thousandth.
    pub(super) fn round_up_to_milli(&mut self) {
        if let Some(decimal) = &self.decimal {
            self.decimal = Some(decimal.round_up(-MILLI));
        } else if self.scale < MILLI {
            let rounded = self.to_decimal().round_up(-MILLI);
            let magnitude =
                rounded.words().first().map_or(0, |word| i64::try_from(*word).unwrap_or(i64::MAX));
            self.value = if rounded.negative { -magnitude } else { magnitude };
            self.scale = MILLI;
        } else {
            return;
        }
        self.cached.clear();
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.cached.clear();
        let is_zero = self.decimal.as_ref().map_or(self.value == 0, Decimal::is_zero);
        if is_zero {
            self.format.clone_from(&other.format);
        }
        if self.decimal.is_none() && other.decimal.is_none() && self.add_small(other).is_some() {
            return;
        }
        self.decimal = Some(self.to_decimal().add(&other.to_decimal()));
        (self.value, self.scale) = (0, 0);
    }

    /// `None` when it does not fit.
    fn add_small(&mut self, other: &Self) -> Option<()> {
        if other.value == 0 {
            return Some(());
        }
        if self.value == 0 {
            (self.value, self.scale) = (other.value, other.scale);
            return Some(());
        }
        let scale = self.scale.min(other.scale);
        let at_scale =
            |value: i64, of: i32| value.checked_mul(10i64.checked_pow(of.abs_diff(scale))?);
        self.value =
            at_scale(self.value, self.scale)?.checked_add(at_scale(other.value, other.scale)?)?;
        self.scale = scale;
        Some(())
    }

    /// Compares, and leaves `self` in the form that Go's comparison does.
    pub(super) fn compare(&mut self, other: &Self) -> Ordering {
        let order = self.to_decimal().compare(&other.to_decimal());
        if self.decimal.is_some() || other.decimal.is_some() {
            self.promote();
        }
        order
    }

    /// As go-spew shows it, without the type's own name.
    pub(super) fn render(&self) -> String {
        let decimal = match &self.decimal {
            None => "<nil>".to_owned(),
            Some(decimal) => {
                let words: Vec<String> = decimal.words().iter().map(u64::to_string).collect();
                let words = if words.is_empty() {
                    "<nil>".to_owned()
                } else {
                    format!("[{}]", words.join(" "))
                };
                format!(
                    "{{unscaled:(big.Int){{neg:(bool){} abs:(big.nat){words}}} \
                     scale:(inf.Scale){}}}",
                    decimal.negative, decimal.scale
                )
            }
        };
        format!(
            "{{i:(resource.int64Amount){{value:(int64){} scale:(resource.Scale){}}} \
             d:(resource.infDecAmount){{Dec:(*inf.Dec){decimal}}} s:(string){} \
             Format:(resource.Format){}}}",
            self.value, self.scale, self.cached, self.format
        )
    }
}

/// A quantity's text in its parts.
struct Parts<'a> {
    negative: bool,
    /// Without leading zeros, but at least one digit.
    whole: &'a str,
    fraction: &'a str,
    /// Powers of two or of ten.
    exponent: i32,
    format: &'static str,
}

fn split(text: &str) -> Option<Parts<'_>> {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let is_digit = |c: char| c.is_ascii_digit();
    let number_end = unsigned.find(|c| !is_digit(c) && c != '.').unwrap_or(unsigned.len());
    let (number, suffix) = unsigned.split_at(number_end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if fraction.contains('.') || whole.len() + fraction.len() == 0 {
        return None;
    }
    let whole = whole.trim_start_matches('0');
    let (exponent, format) = match suffix {
        "n" => (-9, DECIMAL_SI),
        "u" => (-6, DECIMAL_SI),
        "m" => (-3, DECIMAL_SI),
        "" => (0, DECIMAL_SI),
        "k" => (3, DECIMAL_SI),
        "M" => (6, DECIMAL_SI),
        "G" => (9, DECIMAL_SI),
        "T" => (12, DECIMAL_SI),
        "P" => (15, DECIMAL_SI),
        "E" => (18, DECIMAL_SI),
        "Ki" => (10, BINARY_SI),
        "Mi" => (20, BINARY_SI),
        "Gi" => (30, BINARY_SI),
        "Ti" => (40, BINARY_SI),
        "Pi" => (50, BINARY_SI),
        "Ei" => (60, BINARY_SI),
        _ => (suffix.strip_prefix(['e', 'E'])?.parse().ok()?, DECIMAL_EXPONENT),
    };
    Some(Parts {
        negative: text.starts_with('-'),
        whole: if whole.is_empty() { "0" } else { whole },
        fraction,
        exponent,
        format,
    })
}

fn parse(text: &str) -> Option<GoQuantity> {
    if text.len() > MAX_LENGTH {
        return None;
    }
    if text == "0" {
        return Some(GoQuantity::small(0, 0, text, DECIMAL_SI));
    }
    let parts = split(text)?;
    if parts.exponent.unsigned_abs() as usize > MAX_LENGTH {
        return None;
    }
    Some(parse_small(text, &parts).unwrap_or_else(|| parse_decimal(&parts)))
}

/// The way of most quantities: into 64 bits, if there is surely room.
fn parse_small(text: &str, parts: &Parts<'_>) -> Option<GoQuantity> {
    let digits = format!("{}{}", parts.whole, parts.fraction);
    let fraction_places = i32::try_from(parts.fraction.len()).ok()?;
    if parts.format == BINARY_SI {
        let exponent = u32::try_from(parts.exponent).ok()?;
        let room = 14usize.checked_sub((exponent * 3 / 10) as usize)?;
        if !parts.fraction.is_empty() || parts.whole.len() > room {
            return None;
        }
        let number: i64 = digits.parse().ok()?;
        let value = number.checked_mul(1i64.checked_shl(exponent)?)?;
        let value = if parts.negative { -value } else { value };
        let cached = if number % 8 == 0 { "" } else { text };
        return Some(GoQuantity::small(value, 0, cached, BINARY_SI));
    }
    let scale = parts.exponent - fraction_places;
    if digits.len() > SURE_DIGITS || scale < NANO {
        return None;
    }
    let value: i64 = digits.parse().ok()?;
    let canonical = scale % 3 == 0 && !digits.ends_with("000") && !digits.starts_with('0');
    let value = if parts.negative { -value } else { value };
    Some(GoQuantity::small(value, scale, if canonical { text } else { "" }, parts.format))
}

fn parse_decimal(parts: &Parts<'_>) -> GoQuantity {
    let digits = format!("{}{}", parts.whole, parts.fraction);
    let mut format = parts.format;
    // The text was no longer than `MAX_LENGTH`.
    let places = i32::try_from(parts.fraction.len()).unwrap_or(i32::MAX);
    let mut amount = if format == BINARY_SI {
        Decimal::new(false, &digits, places).doubled(parts.exponent.unsigned_abs())
    } else {
        Decimal::new(false, &digits, places - parts.exponent)
    };
    if !amount.is_zero() {
        amount = amount.round_up(-NANO);
    }
    if format == BINARY_SI {
        let most = Decimal::from_i64(i64::MAX, 0);
        if amount.compare(&most).is_gt() {
            amount = most;
        }
        if !amount.is_zero() && amount.compare(&Decimal::from_i64(1, 0)).is_lt() {
            format = DECIMAL_SI;
        }
    }
    amount.negative = parts.negative && !amount.is_zero();
    GoQuantity {
        value: 0,
        scale: 0,
        decimal: Some(amount),
        cached: String::new(),
        format: format.to_owned(),
    }
}
