//! Syntax of names in the Kubernetes API.

use std::net::IpAddr;

pub(super) fn is_ip(text: &str) -> bool {
    text.parse::<IpAddr>().is_ok()
}

/// `10.0.0.0/24`, `fd00::/64`.
pub(super) fn is_cidr(text: &str) -> bool {
    let Some((address, bits)) = text.split_once('/') else { return false };
    let most = match address.parse::<IpAddr>() {
        Ok(IpAddr::V4(_)) => 32,
        Ok(IpAddr::V6(_)) => 128,
        Err(_) => return false,
    };
    bits.len() <= 3
        && bits.bytes().all(|byte| byte.is_ascii_digit())
        && bits.parse::<u8>().is_ok_and(|bits| bits <= most)
}

/// A label's or taint's key: an optional DNS domain with a slash, and a name.
pub(crate) fn is_qualified_name(text: &str) -> bool {
    match text.split_once('/') {
        Some((domain, name)) => is_dns_subdomain(domain) && is_label_text(name),
        None => is_label_text(text),
    }
}

/// A label's value: empty, or like a name.
pub(super) fn is_label_value(text: &str) -> bool {
    text.is_empty() || is_label_text(text)
}

fn is_label_text(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    (1..=63).contains(&text.len()) && text.bytes().all(inner) && has_alphanumeric_ends(text)
}

fn is_dns_subdomain(text: &str) -> bool {
    (1..=253).contains(&text.len())
        && text.split('.').all(|label| {
            label
                .bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
                && has_alphanumeric_ends(label)
        })
}

fn has_alphanumeric_ends(text: &str) -> bool {
    let bytes = text.as_bytes();
    [bytes.first(), bytes.last()]
        .iter()
        .all(|end| end.is_some_and(|byte| byte.is_ascii_alphanumeric()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for good in ["a", "example.com/A_b.c-d", "0/1", &"a".repeat(63)] {
            assert!(is_qualified_name(good), "{good}");
        }
        for bad in ["", "/a", "a/", "A.com/a", "a/b/c", "-a", "a-", "a b", &"a".repeat(64)] {
            assert!(!is_qualified_name(bad), "{bad}");
        }
        assert!(is_label_value("") && is_label_value("x") && !is_label_value("x/y"));
    }

    #[test]
    fn addresses() {
        assert!(is_cidr("10.0.0.0/24") && is_cidr("fd00::/64"));
        assert!(!is_cidr("10.0.0.0/33") && !is_cidr("10.0.0.0") && !is_cidr("x/8"));
    }
}
