//! What a plain YAML scalar means. Manifests are read by people and tools that know the Go
//! kubelet, whose parser follows YAML 1.1 here: `yes` and `off` are booleans, `0644` is octal,
//! `1_000` is a number, dates stay text.

use super::node::Value;

/// The meaning of an unquoted, untagged scalar.
pub(super) fn resolve_plain(text: &str) -> Value {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Value::Null,
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => {
            return Value::Bool(true);
        }
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => {
            return Value::Bool(false);
        }
        ".nan" | ".NaN" | ".NAN" => return Value::Float(f64::NAN),
        ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" => {
            return Value::Float(f64::INFINITY);
        }
        "-.inf" | "-.Inf" | "-.INF" => return Value::Float(f64::NEG_INFINITY),
        _ => {}
    }
    let looks_numeric = text.starts_with(|c: char| c.is_ascii_digit() || "+-.".contains(c));
    if looks_numeric && let Some(number) = parse_number(&text.replace('_', "")) {
        return number;
    }
    Value::String(text.into())
}

fn parse_number(text: &str) -> Option<Value> {
    let (negative, digits) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    if let Some(value) = parse_integer(negative, digits) {
        return Some(value);
    }
    if !is_decimal_float(digits) {
        return None;
    }
    let value: f64 = text.parse().ok()?;
    value.is_finite().then(|| from_float(value))
}

/// A float without fraction is written to JSON as an integer by Go, and so counts as one.
pub(super) fn from_float(value: f64) -> Value {
    if value.fract() == 0.0 && value.abs() < 9.0e15 {
        #[allow(clippy::cast_possible_truncation)] // Whole and within the exact range of f64.
        return Value::Int(value as i64);
    }
    Value::Float(value)
}

/// The text that Go's JSON gives a number: very small and very large ones get an exponent.
pub(super) fn json_number(value: f64) -> String {
    if value == 0.0 || (1e-6..1e21).contains(&value.abs()) {
        return value.to_string();
    }
    let text = format!("{value:e}");
    if value.abs() < 1.0 { text } else { text.replace('e', "e+") }
}

fn parse_integer(negative: bool, digits: &str) -> Option<Value> {
    let lower = digits.to_ascii_lowercase();
    let (radix, digits) = if let Some(rest) = lower.strip_prefix("0x") {
        (16, rest)
    } else if let Some(rest) = lower.strip_prefix("0b") {
        (2, rest)
    } else if let Some(rest) = lower.strip_prefix("0o") {
        (8, rest)
    } else if lower.len() > 1 && lower.starts_with('0') {
        (8, &lower[1..])
    } else {
        (10, lower.as_str())
    };
    if !digits.starts_with(|c: char| c.is_ascii_alphanumeric()) {
        return None;
    }
    let magnitude = u64::from_str_radix(digits, radix).ok()?;
    if negative {
        return Some(Value::Int(0i64.checked_sub_unsigned(magnitude)?));
    }
    Some(i64::try_from(magnitude).map_or(Value::BigInt(magnitude), Value::Int))
}

/// `12`, `1.5`, `.5`, `5.`, with an optional exponent.
fn is_decimal_float(digits: &str) -> bool {
    let (mantissa, exponent) = digits
        .find(['e', 'E'])
        .map_or((digits, None), |at| (&digits[..at], Some(&digits[at + 1..])));
    let all_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let mantissa_is_good =
        all_digits(whole) && all_digits(fraction) && !(whole.is_empty() && fraction.is_empty());
    mantissa_is_good
        && exponent.is_none_or(|exponent| {
            let digits = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
            !digits.is_empty() && all_digits(digits)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_scalars_mean_what_go_yaml_makes_of_them() {
        let text = |value: &str| Value::String(value.into());
        for (input, expected) in [
            ("", Value::Null),
            ("~", Value::Null),
            ("yes", Value::Bool(true)),
            ("yEs", text("yEs")),
            ("off", Value::Bool(false)),
            ("0", Value::Int(0)),
            ("0644", Value::Int(0o644)),
            ("0o644", Value::Int(0o644)),
            ("0x1F", Value::Int(31)),
            ("-0b101", Value::Int(-5)),
            ("1_000", Value::Int(1000)),
            ("+5", Value::Int(5)),
            ("089", Value::Int(89)),
            ("-9223372036854775808", Value::Int(i64::MIN)),
            ("18446744073709551615", Value::BigInt(u64::MAX)),
            ("1.5", Value::Float(1.5)),
            (".5", Value::Float(0.5)),
            ("80.0", Value::Int(80)),
            ("1e3", Value::Int(1000)),
            ("1e", text("1e")),
            ("1.2.3", text("1.2.3")),
            ("10.0.0.1", text("10.0.0.1")),
            ("2001-01-01", text("2001-01-01")),
            ("-", text("-")),
            (".", text(".")),
            ("--port=80", text("--port=80")),
            ("100m", text("100m")),
            ("1Gi", text("1Gi")),
            ("0x", text("0x")),
            ("1:30", text("1:30")),
            ("+-5", text("+-5")),
            ("1e400", text("1e400")),
        ] {
            assert_eq!(resolve_plain(input), expected, "{input:?}");
        }
        for (value, expected) in [
            (0.0, "0"),
            (1.5, "1.5"),
            (-0.25, "-0.25"),
            (0.000_001, "0.000001"),
            (4.5e-12, "4.5e-12"),
            (1e20, "100000000000000000000"),
            (-1e21, "-1e+21"),
        ] {
            assert_eq!(json_number(value), expected);
        }
        assert!(matches!(resolve_plain(".inf"), Value::Float(value) if value.is_infinite()));
    }
}
