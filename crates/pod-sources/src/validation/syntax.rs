//! The API's rules for names and other short texts. Each check answers with what is wrong; an
//! empty list means fine. The texts are what users know from the API server.

use std::net::IpAddr;

const LABEL_MAX: usize = 63;
const SUBDOMAIN_MAX: usize = 253;

fn is_label(text: &str) -> bool {
    let bytes = text.as_bytes();
    let alphanumeric = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    bytes.first().is_some_and(alphanumeric)
        && bytes.last().is_some_and(alphanumeric)
        && bytes.iter().all(|byte| alphanumeric(byte) || *byte == b'-')
}

fn is_subdomain(text: &str) -> bool {
    text.split('.').all(is_label)
}

/// RFC 1123 label: a container's name.
pub(super) fn dns_label(text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    if text.len() > LABEL_MAX {
        faults.push(format!("must be no more than {LABEL_MAX} characters"));
    }
    if !is_label(text) {
        faults.push(if is_subdomain(text) {
            "must not contain dots".to_owned()
        } else {
            "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or \
             '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or \
             '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
                .to_owned()
        });
    }
    faults
}

/// RFC 1123 subdomain: a pod's name.
pub(super) fn dns_subdomain(text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    if text.len() > SUBDOMAIN_MAX {
        faults.push(format!("must be no more than {SUBDOMAIN_MAX} characters"));
    }
    if !is_subdomain(text) {
        faults.push(
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, \
             '-' or '.', and must start and end with an alphanumeric character (e.g. \
             'example.com', regex used for validation is \
             '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
                .to_owned(),
        );
    }
    faults
}

/// A DNS search domain, which may have underscores.
pub(super) fn dns_search(text: &str) -> Vec<String> {
    let is_search_label = |label: &str| {
        let rest = label.strip_prefix('_').unwrap_or(label);
        is_label(&rest.replace('_', "-")) && !rest.starts_with('_') && !rest.ends_with('_')
    };
    let mut faults = Vec::new();
    if text.len() > SUBDOMAIN_MAX {
        faults.push(format!("must be no more than {SUBDOMAIN_MAX} characters"));
    }
    if !text.split('.').all(is_search_label) {
        faults.push(
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, \
             '_', '-' or '.', and must start and end with an alphanumeric character (e.g. \
             'example.com', regex used for validation is \
             '_?[a-z0-9]([-_a-z0-9]*[a-z0-9])?(\\._?[a-z0-9]([-_a-z0-9]*[a-z0-9])?)*')"
                .to_owned(),
        );
    }
    faults
}

fn is_qualified_part(text: &str) -> bool {
    let bytes = text.as_bytes();
    bytes.first().is_some_and(u8::is_ascii_alphanumeric)
        && bytes.last().is_some_and(u8::is_ascii_alphanumeric)
        && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(byte))
}

const QUALIFIED_RULE: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must \
     start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', \
     regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";

/// A label's key, `example.com/name` or `name`.
pub(super) fn qualified_name(text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    let name = match text.split('/').collect::<Vec<_>>()[..] {
        [name] => name,
        ["", name] => {
            faults.push("prefix part must be non-empty".to_owned());
            name
        }
        [prefix, name] => {
            faults.extend(
                dns_subdomain(prefix).into_iter().map(|fault| format!("prefix part {fault}")),
            );
            name
        }
        _ => {
            return vec![format!(
                "a valid label key {QUALIFIED_RULE} with an optional DNS subdomain prefix and \
                 '/' (e.g. 'example.com/MyName')"
            )];
        }
    };
    if name.is_empty() {
        faults.push("name part must be non-empty".to_owned());
    } else if name.len() > LABEL_MAX {
        faults.push(format!("name part must be no more than {LABEL_MAX} bytes"));
    }
    if !is_qualified_part(name) {
        faults.push(format!("name part {QUALIFIED_RULE}"));
    }
    faults
}

/// A label's value.
pub(super) fn label_value(text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    if text.len() > LABEL_MAX {
        faults.push(format!("must be no more than {LABEL_MAX} bytes"));
    }
    if !text.is_empty() && !is_qualified_part(text) {
        faults.push(
            "a valid label must be an empty string or consist of alphanumeric characters, '-', \
             '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  \
             or 'my_value',  or '12345', regex used for validation is \
             '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
                .to_owned(),
        );
    }
    faults
}

/// Any number of a port.
pub(super) fn port_number(port: i32) -> Vec<String> {
    in_range(port.into(), 1, 65535)
}

/// `low <= number <= high`.
pub(super) fn in_range(number: i64, low: i64, high: i64) -> Vec<String> {
    if (low..=high).contains(&number) {
        Vec::new()
    } else {
        vec![format!("must be between {low} and {high}, inclusive")]
    }
}

/// A port's name.
pub(super) fn port_name(text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    if text.len() > 15 {
        faults.push("must be no more than 15 characters".to_owned());
    }
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if text.is_empty() || !text.bytes().all(allowed) {
        faults.push(
            "must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)".to_owned(),
        );
    }
    if !text.bytes().any(|byte| byte.is_ascii_lowercase()) {
        faults.push("must contain at least one letter (a-z)".to_owned());
    }
    if text.contains("--") {
        faults.push("must not contain consecutive hyphens".to_owned());
    }
    if text.starts_with('-') || text.ends_with('-') {
        faults.push("must not begin or end with a hyphen".to_owned());
    }
    faults
}

/// The name of an environment variable.
pub(super) fn env_name(text: &str) -> Vec<String> {
    if text.chars().all(|c| (' '..='~').contains(&c) && c != '=') {
        return Vec::new();
    }
    vec![
        "a valid environment variable name must consist only of printable ASCII characters other \
         than '='"
            .to_owned(),
    ]
}

/// A key of a config map or secret.
pub(super) fn config_key(text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    if text.len() > SUBDOMAIN_MAX {
        faults.push(format!("must be no more than {SUBDOMAIN_MAX} characters"));
    }
    if text.is_empty()
        || !text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte))
    {
        faults.push(
            "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. \
             'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is \
             '[-._a-zA-Z0-9]+')"
                .to_owned(),
        );
    }
    if text == "." {
        faults.push("must not be '.'".to_owned());
    } else if text == ".." {
        faults.push("must not be '..'".to_owned());
    } else if text.starts_with("..") {
        faults.push("must not start with '..'".to_owned());
    }
    faults
}

/// The name of an HTTP header.
pub(super) fn header_name(text: &str) -> Vec<String> {
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-') {
        return Vec::new();
    }
    vec![
        "a valid HTTP header must consist of alphanumeric characters or '-' (e.g. \
         'X-Header-Name', regex used for validation is '[-A-Za-z0-9]+')"
            .to_owned(),
    ]
}

/// An IP address in a form that everybody reads alike.
pub(super) fn ip_address(text: &str) -> Vec<String> {
    match text.parse::<IpAddr>() {
        Ok(IpAddr::V6(address)) if address.to_ipv4_mapped().is_some() => {
            vec!["must not be an IPv4-mapped IPv6 address".to_owned()]
        }
        Ok(_) => Vec::new(),
        Err(_) => {
            let without_zeros: Vec<&str> =
                text.split('.').map(|part| part.trim_start_matches('0')).collect();
            let sloppy = without_zeros
                .iter()
                .map(|part| if part.is_empty() { "0" } else { part })
                .collect::<Vec<_>>()
                .join(".");
            if sloppy.parse::<std::net::Ipv4Addr>().is_ok() && !text.contains("..") {
                vec!["must not have leading 0s".to_owned()]
            } else {
                vec!["must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)".to_owned()]
            }
        }
    }
}

/// A sysctl, its segments separated by dots or slashes.
pub(super) fn is_sysctl_name(text: &str) -> bool {
    let is_segment = |segment: &str| {
        let bytes = segment.as_bytes();
        let alphanumeric = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        bytes.first().is_some_and(alphanumeric)
            && bytes.last().is_some_and(alphanumeric)
            && bytes.iter().all(|byte| alphanumeric(byte) || b"-_".contains(byte))
    };
    text.len() <= SUBDOMAIN_MAX && text.split(['.', '/']).all(is_segment)
}

/// No `..` anywhere in a path.
pub(super) fn no_backsteps(path: &str) -> Vec<String> {
    if path.split('/').any(|part| part == "..") {
        vec!["must not contain '..'".to_owned()]
    } else {
        Vec::new()
    }
}

/// A path that stays beneath where it starts.
pub(super) fn descending_path(path: &str) -> Vec<String> {
    let mut faults = Vec::new();
    if path.starts_with('/') {
        faults.push("must be a relative path".to_owned());
    }
    faults.extend(no_backsteps(path));
    faults
}

/// A path in a volume whose names starting with `..` belong to the kubelet.
pub(super) fn unreserved_path(path: &str) -> Vec<String> {
    let mut faults = descending_path(path);
    if path.starts_with("..") && path != ".." && !path.starts_with("../") {
        faults.push("must not start with '..'".to_owned());
    }
    faults
}

/// A text that becomes one element of a path.
pub(super) fn path_element(text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    if matches!(text, "." | "..") {
        faults.push(format!("may not be '{text}'"));
    }
    if text.contains('/') {
        faults.push("may not contain '/'".to_owned());
    }
    if text.chars().any(char::is_control) {
        faults.push("may not contain control characters".to_owned());
    }
    if text.len() > 128 {
        faults.push("must be no more than 128 bytes".to_owned());
    }
    faults
}
