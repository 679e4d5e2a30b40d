//! How flag values are read. The accepted forms and the error texts are those of Go's `strconv` and
//! `pflag`, which scripts and people know.

use std::collections::BTreeMap;
use std::path::PathBuf;

use k8s_openapi::api::core::v1::Taint;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use rubelet_types::Quantity;

use crate::GoDuration;
use crate::parts::{HttpHeaders, MemoryReservation, VModuleItem};

/// A value with one textual form.
pub(super) trait FlagValue: Sized {
    fn parse_flag(text: &str) -> Result<Self, String>;
}

impl FlagValue for String {
    fn parse_flag(text: &str) -> Result<Self, String> {
        Ok(text.to_owned())
    }
}

impl FlagValue for PathBuf {
    fn parse_flag(text: &str) -> Result<Self, String> {
        Ok(Self::from(text))
    }
}

impl FlagValue for bool {
    fn parse_flag(text: &str) -> Result<Self, String> {
        match text {
            "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
            "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
            _ => Err(format!("strconv.ParseBool: parsing {text:?}: invalid syntax")),
        }
    }
}

impl FlagValue for i32 {
    fn parse_flag(text: &str) -> Result<Self, String> {
        Self::try_from(integer(text)?).map_err(|_| out_of_range("ParseInt", text))
    }
}

impl FlagValue for i64 {
    fn parse_flag(text: &str) -> Result<Self, String> {
        integer(text)
    }
}

impl FlagValue for GoDuration {
    fn parse_flag(text: &str) -> Result<Self, String> {
        text.parse().map_err(|error: crate::ParseDurationError| error.to_string())
    }
}

impl FlagValue for ApiQuantity {
    fn parse_flag(text: &str) -> Result<Self, String> {
        text.parse::<Quantity>().map_err(|error| error.to_string())?;
        Ok(Self(text.to_owned()))
    }
}

fn out_of_range(function: &str, text: &str) -> String {
    format!("strconv.{function}: parsing {text:?}: value out of range")
}

/// A whole number as in Go source: `42`, `-1`, `0x1f`, `0o17`, `017`, `0b1`, `1_000`.
fn integer(text: &str) -> Result<i64, String> {
    let invalid = || format!("strconv.ParseInt: parsing {text:?}: invalid syntax");
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let lower = digits.to_ascii_lowercase();
    let (radix, number) = if let Some(rest) = lower.strip_prefix("0x") {
        (16, rest)
    } else if let Some(rest) = lower.strip_prefix("0o") {
        (8, rest)
    } else if let Some(rest) = lower.strip_prefix("0b") {
        (2, rest)
    } else if lower.len() > 1 && lower.starts_with('0') {
        (8, &lower[1..])
    } else {
        (10, lower.as_str())
    };
    if number.ends_with('_') || number.contains("__") || (radix == 10 && number.starts_with('_')) {
        return Err(invalid());
    }
    let number = number.replace('_', "");
    if number.is_empty() || !number.chars().all(|c| c.is_digit(radix)) {
        return Err(invalid());
    }
    let magnitude =
        i128::from_str_radix(&number, radix).map_err(|_| out_of_range("ParseInt", text))?;
    i64::try_from(if negative { -magnitude } else { magnitude })
        .map_err(|_| out_of_range("ParseInt", text))
}

/// A log level: decimal digits that fit a positive 32 bit number.
pub(super) fn verbosity(text: &str) -> Result<u32, String> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(format!("strconv.ParseUint: parsing {text:?}: invalid syntax"));
    }
    text.parse::<i32>()
        .ok()
        .and_then(|level| u32::try_from(level).ok())
        .ok_or_else(|| out_of_range("ParseUint", text))
}

pub(super) fn assign<T: FlagValue>(slot: &mut T, text: &str) -> Result<(), String> {
    *slot = T::parse_flag(text)?;
    Ok(())
}

/// An empty value takes an earlier one back.
pub(super) fn assign_unless_empty<T: FlagValue>(
    slot: &mut Option<T>,
    text: &str,
) -> Result<(), String> {
    *slot = if text.is_empty() { None } else { Some(T::parse_flag(text)?) };
    Ok(())
}

pub(super) fn ip_address(slot: &mut String, text: &str) -> Result<(), String> {
    if !text.is_empty() && text.parse::<std::net::IpAddr>().is_err() {
        return Err(format!("{text:?} is not a valid IP address"));
    }
    text.clone_into(slot);
    Ok(())
}

/// A comma-separated list. Its first use replaces what the configuration file says, further uses
/// append. A part may stand in double quotes to hold commas.
pub(super) fn list(slot: &mut Vec<String>, first: bool, text: &str) -> Result<(), String> {
    if first {
        slot.clear();
    }
    slot.extend(csv_fields(text)?);
    Ok(())
}

fn csv_fields(text: &str) -> Result<Vec<String>, String> {
    let mut fields = Vec::new();
    let mut rest = text;
    if rest.is_empty() {
        return Ok(fields);
    }
    loop {
        let Some(quoted) = rest.strip_prefix('"') else {
            let end = rest.find(',').unwrap_or(rest.len());
            let (field, tail) = rest.split_at(end);
            if field.contains('"') {
                return Err(format!("parse error in {text:?}: bare \" in non-quoted field"));
            }
            fields.push(field.to_owned());
            match tail.strip_prefix(',') {
                Some(next) => rest = next,
                None => return Ok(fields),
            }
            continue;
        };
        let mut field = String::new();
        let mut inside = quoted;
        loop {
            let Some(end) = inside.find('"') else {
                return Err(format!("parse error in {text:?}: extraneous or missing \" in field"));
            };
            field.push_str(&inside[..end]);
            inside = &inside[end + 1..];
            match inside.strip_prefix('"') {
                Some(next) => {
                    field.push('"');
                    inside = next;
                }
                None => break,
            }
        }
        fields.push(field);
        match inside.strip_prefix(',') {
            Some(next) => rest = next,
            None if inside.is_empty() => return Ok(fields),
            None => {
                return Err(format!("parse error in {text:?}: extraneous or missing \" in field"));
            }
        }
    }
}

/// The non-empty parts of a comma-separated list of pairs.
fn pairs<'a>(
    text: &'a str,
    separator: char,
) -> impl Iterator<Item = Result<(String, String), String>> + 'a {
    text.split(',').filter(|part| !part.is_empty()).map(move |part| {
        let (key, value) = part
            .split_once(separator)
            .ok_or_else(|| format!("malformed pair, expect string{separator}string"))?;
        Ok((key.trim().to_owned(), value.trim().to_owned()))
    })
}

/// A comma-separated map; the first use replaces what the configuration file says.
pub(super) fn map(
    slot: &mut BTreeMap<String, String>,
    first: bool,
    text: &str,
    separator: char,
) -> Result<(), String> {
    if first {
        slot.clear();
    }
    for pair in pairs(text, separator) {
        let (key, value) = pair?;
        slot.insert(key, value);
    }
    Ok(())
}

/// Labels: the value may be missing.
pub(super) fn labels(slot: &mut BTreeMap<String, String>, text: &str) -> Result<(), String> {
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let (key, value) = part.split_once('=').unwrap_or((part, ""));
        slot.insert(key.trim().to_owned(), value.trim().to_owned());
    }
    Ok(())
}

/// Feature gates are merged into those of the configuration file, name by name.
pub(super) fn gates(slot: &mut BTreeMap<String, bool>, text: &str) -> Result<(), String> {
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let (name, value) =
            part.split_once('=').ok_or_else(|| "malformed pair, expect string=bool".to_owned())?;
        let (name, value) = (name.trim(), value.trim());
        let state = bool::parse_flag(value)
            .map_err(|error| format!("invalid value of {name}: {value}, err: {error}"))?;
        slot.insert(name.to_owned(), state);
    }
    Ok(())
}

pub(super) fn headers(slot: &mut HttpHeaders, first: bool, text: &str) -> Result<(), String> {
    if first {
        slot.0.clear();
    }
    for pair in pairs(text, ':') {
        let (name, value) = pair?;
        slot.0.entry(name).or_default().push(value);
    }
    Ok(())
}

/// `file=level,...`; uses add up.
pub(super) fn vmodule(slot: &mut Vec<VModuleItem>, first: bool, text: &str) -> Result<(), String> {
    if first {
        slot.clear();
    }
    for part in text.split(',').filter(|part| !part.is_empty()) {
        match part.split('=').collect::<Vec<_>>()[..] {
            [pattern, level] if !pattern.is_empty() && !level.is_empty() => {
                let verbosity = verbosity(level)
                    .map_err(|error| format!("parsing verbosity in {part:?}: {error}"))?;
                slot.push(VModuleItem { file_pattern: pattern.to_owned(), verbosity });
            }
            _ => return Err(format!("{part:?} does not have the pattern=N format")),
        }
    }
    Ok(())
}

/// `key=value:Effect`, `key:Effect`, comma-separated; the first use replaces.
pub(super) fn taints(slot: &mut Vec<Taint>, first: bool, text: &str) -> Result<(), String> {
    if first {
        slot.clear();
    }
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let taint = taint(part)?;
        if slot.iter().any(|other| other.key == taint.key && other.effect == taint.effect) {
            return Err(format!("duplicated taints with the same key and effect: {part}"));
        }
        slot.push(taint);
    }
    Ok(())
}

fn taint(text: &str) -> Result<Taint, String> {
    let invalid = |why: &str| format!("invalid taint spec: {text}, {why}");
    let (pair, effect) = text
        .rsplit_once(':')
        .ok_or_else(|| invalid("it needs an effect, as in key=value:Effect"))?;
    let (key, value) = match pair.split_once('=') {
        Some((_, value)) if value.contains('=') => {
            return Err(invalid("it has more than one \"=\""));
        }
        Some((key, value)) => (key, Some(value.to_owned())),
        None => (pair, None),
    };
    if key.is_empty() || key.contains(':') {
        return Err(invalid("the key is not valid"));
    }
    if !matches!(effect, "NoSchedule" | "PreferNoSchedule" | "NoExecute") {
        return Err(format!("invalid taint effect: {effect}, unsupported taint effect"));
    }
    Ok(Taint { key: key.to_owned(), value, effect: effect.to_owned(), time_added: None })
}

/// `0:memory=1Gi,hugepages-1Gi=2Gi;1:memory=1Gi`; the first use replaces.
pub(super) fn reserved_memory(
    slot: &mut Vec<MemoryReservation>,
    first: bool,
    text: &str,
) -> Result<(), String> {
    if first {
        slot.clear();
    }
    for node in text.split(';').filter(|node| !node.trim().is_empty()) {
        let invalid = || {
            format!(
                "the reserved memory has incorrect format, expected \
            numaNodeID:type=quantity[,type=quantity...], got {node}"
            )
        };
        let (numa_node, limits) = node.split_once(':').ok_or_else(invalid)?;
        let numa_node = numa_node
            .trim()
            .parse::<u16>()
            .map_err(|_| format!("failed to convert the NUMA node ID {numa_node:?}"))?;
        let mut reservation =
            MemoryReservation { numa_node: i32::from(numa_node), limits: BTreeMap::new() };
        for pair in pairs(limits, '=') {
            let (name, amount) = pair.map_err(|_| invalid())?;
            if name != "memory" && !name.starts_with("hugepages-") {
                return Err(format!("memory type {name:?} not supported"));
            }
            let quantity = amount
                .parse::<Quantity>()
                .map_err(|_| format!("failed to parse the quantity {amount:?} of {name:?}"))?;
            if quantity < Quantity::ZERO {
                return Err(format!("the quantity of {name:?} must not be negative: {amount}"));
            }
            if reservation.limits.insert(name.clone(), ApiQuantity(amount)).is_some() {
                return Err(format!("the memory type {name:?} is reserved twice: {node}"));
            }
        }
        if reservation.limits.is_empty() {
            return Err(invalid());
        }
        slot.push(reservation);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn integers_are_read_as_in_go() {
        for (text, expected) in [
            ("42", 42),
            ("-1", -1),
            ("+7", 7),
            ("0", 0),
            ("-0", 0),
            ("0x1F", 31),
            ("0b101", 5),
            ("0o17", 15),
            ("017", 15),
            ("1_000", 1000),
            ("0x_ff", 255),
            ("-9223372036854775808", i64::MIN),
        ] {
            assert_eq!(i64::parse_flag(text), Ok(expected), "{text}");
        }
        for text in ["", "-", "1.5", "0x", "1__0", "_1", "1_", "08", "a", " 1", "--1"] {
            assert_eq!(
                i64::parse_flag(text),
                Err(format!("strconv.ParseInt: parsing {text:?}: invalid syntax"))
            );
        }
        assert_eq!(
            i32::parse_flag("4294967296"),
            Err("strconv.ParseInt: parsing \"4294967296\": value out of range".to_owned())
        );
    }

    #[test]
    fn lists_replace_first_and_then_append() {
        let mut slot = vec!["from-file".to_owned()];
        list(&mut slot, true, "a,\"b,c\"").unwrap();
        list(&mut slot, false, "d,").unwrap();
        assert_eq!(slot, ["a", "b,c", "d", ""]);
        list(&mut slot, true, "").unwrap();
        assert!(slot.is_empty());
        assert!(list(&mut slot, true, "\"a").is_err());
        assert!(list(&mut slot, true, "a\"b").is_err());
        list(&mut slot, true, "\"a\"\"b\",c").unwrap();
        assert_eq!(slot, ["a\"b", "c"]);
    }

    #[test]
    fn maps_keep_what_follows_the_first_separator() {
        let mut slot = BTreeMap::from([("old".to_owned(), "x".to_owned())]);
        map(&mut slot, true, "memory.available<100Mi, nodefs.available < 10% ,", '<').unwrap();
        map(&mut slot, false, "a<b<c", '<').unwrap();
        let pairs: Vec<_> = slot.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        assert_eq!(
            pairs,
            [("a", "b<c"), ("memory.available", "100Mi"), ("nodefs.available", "10%")]
        );
        assert_eq!(
            map(&mut slot, false, "nothing", '=').unwrap_err(),
            "malformed pair, expect string=string"
        );
    }

    #[test]
    fn taints_have_the_form_of_kubectl() {
        let mut slot = Vec::new();
        taints(&mut slot, true, "a=b:NoSchedule,example.com/c:NoExecute,d=:PreferNoSchedule")
            .unwrap();
        let read: Vec<_> =
            slot.iter().map(|t| (t.key.as_str(), t.value.as_deref(), t.effect.as_str())).collect();
        assert_eq!(
            read,
            [
                ("a", Some("b"), "NoSchedule"),
                ("example.com/c", None, "NoExecute"),
                ("d", Some(""), "PreferNoSchedule")
            ]
        );
        for text in ["a=b", "a=b:Never", "=b:NoSchedule", "a=b=c:NoSchedule", ":NoSchedule"] {
            assert!(taints(&mut Vec::new(), true, text).is_err(), "{text}");
        }
        assert!(taints(&mut slot, false, "a=c:NoSchedule").is_err(), "same key and effect");
    }

    #[test]
    fn reserved_memory_is_by_numa_node() {
        let mut slot = Vec::new();
        reserved_memory(&mut slot, true, "0:memory=1Gi,hugepages-2Mi=64Mi;1:memory=2Gi").unwrap();
        reserved_memory(&mut slot, false, "2:memory=1Mi").unwrap();
        assert_eq!(slot.iter().map(|r| r.numa_node).collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(slot[0].limits["hugepages-2Mi"].0, "64Mi");
        for text in ["memory=1Gi", "0:", "x:memory=1Gi", "0:cpu=1", "0:memory=x", "0:memory=-1"] {
            assert!(reserved_memory(&mut Vec::new(), true, text).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "\\PC{0,32}") {
            let _ = integer(&text);
            let _ = csv_fields(&text);
            let _ = taint(&text);
            let _ = reserved_memory(&mut Vec::new(), true, &text);
            let _ = vmodule(&mut Vec::new(), true, &text);
        }
    }
}
