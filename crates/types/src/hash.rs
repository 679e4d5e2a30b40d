//! Hashes that must equal the Go kubelet's, so that a node can change hands without restarts.

/// FNV-1a, 32 bits.
pub fn fnv1a_32(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

/// FNV-1a, 128 bits.
pub fn fnv1a_128(bytes: &[u8]) -> u128 {
    bytes.iter().fold(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d, |hash, byte| {
        (hash ^ u128::from(*byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b)
    })
}

/// The hash of a container's identity (its name and image), as the annotation
/// `io.kubernetes.container.hash` carries it: lower-case hexadecimal without padding.
///
/// The Go kubelet hashes the debug rendering of the JSON bytes of `{image, name}`, so that is what
/// has to be reproduced here.
pub fn container_hash(name: &str, image: &str) -> String {
    let json = go_json_object(&[("image", image), ("name", name)]);
    let mut rendered = String::from("([]uint8)[");
    for (index, byte) in json.bytes().enumerate() {
        if index > 0 {
            rendered.push(' ');
        }
        rendered.push_str(&byte.to_string());
    }
    rendered.push(']');
    format!("{:x}", fnv1a_32(rendered.as_bytes()))
}

/// A JSON object of texts, byte for byte as Go's encoder writes a struct whose fields are left out
/// when they are empty.
pub fn go_json_object(fields: &[(&str, &str)]) -> String {
    let mut json = String::from("{");
    for (key, value) in fields {
        if value.is_empty() {
            continue;
        }
        if json.len() > 1 {
            json.push(',');
        }
        json.push('"');
        json.push_str(key);
        json.push_str("\":\"");
        push_go_json_string(&mut json, value);
        json.push('"');
    }
    json.push('}');
    json
}

/// Escapes as Go's `encoding/json` does with its HTML escaping on.
fn push_go_json_string(out: &mut String, value: &str) {
    for c in value.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' | '\0'..='\u{1f}' => {
                out.push_str(&format!("\\u{:04x}", u32::from(c)));
            }
            _ => out.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn container_hash_equals_the_go_kubelets() {
        assert_eq!(container_hash("test_container", "foo/image:v1"), "8e45cbd0");
    }

    #[test]
    fn fnv_matches_published_vectors() {
        assert_eq!(fnv1a_32(b""), 0x811c_9dc5);
        assert_eq!(fnv1a_32(b"foobar"), 0xbf9c_f968);
        assert_eq!(fnv1a_128(b"a"), 0xd228_cb69_6f1a_8caf_7891_2b70_4e4a_8964);
    }

    #[test]
    fn html_characters_are_escaped_like_go() {
        let mut out = String::new();
        push_go_json_string(&mut out, "a<b>&\"\u{1}");
        assert_eq!(out, "a\\u003cb\\u003e\\u0026\\\"\\u0001");
    }
}
