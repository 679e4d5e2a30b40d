//! The format: `{"data":"<json of the value>","checksum":N}`.
//!
//! The Go kubelet verifies the same checksum over the same string, so a file of a value whose JSON
//! it knows can be read by either of them.

use rubelet_types::fnv1a_32;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Larger files are not read and not written: 64 MiB, a thousand times what a full node needs.
pub const MAX_FILE_BYTES: u64 = 64 << 20;

/// Why the contents of a file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Damage {
    /// Nothing in it: what a power loss leaves of a file that was never flushed.
    #[error("the file is empty")]
    Empty,
    /// More than [`MAX_FILE_BYTES`].
    #[error("the file is larger than {MAX_FILE_BYTES} bytes")]
    TooLarge,
    /// Not the JSON of an envelope: cut short, garbage, or another format.
    #[error("the file is not a checkpoint")]
    Envelope(#[source] serde_json::Error),
    /// The data are not those that were saved.
    #[error("the checksum is {stored}, but that of the data is {computed}")]
    Checksum {
        /// What the file says.
        stored: u64,
        /// What its data give.
        computed: u64,
    },
    /// The data are as saved, but not what this version expects.
    #[error("the data are intact but have an unknown shape")]
    Data(#[source] serde_json::Error),
}

#[derive(Serialize)]
struct Saved<'a> {
    data: &'a str,
    checksum: u64,
}

#[derive(Deserialize)]
struct Read {
    data: String,
    checksum: u64,
}

/// The checksum that the Go kubelet's `checkpointmanager` gives a string: FNV-1a, 32 bits, over the
/// string's debug rendering, which is its type's name in parentheses and its text.
pub fn go_string_checksum(data: &str) -> u64 {
    u64::from(fnv1a_32(&[b"(string)", data.as_bytes()].concat()))
}

pub(crate) fn encode<T: Serialize + ?Sized>(value: &T) -> Result<Vec<u8>, serde_json::Error> {
    let data = serde_json::to_string(value)?;
    serde_json::to_vec(&Saved { data: &data, checksum: go_string_checksum(&data) })
}

pub(crate) fn decode<T: DeserializeOwned>(contents: &[u8]) -> Result<T, Damage> {
    if contents.is_empty() {
        return Err(Damage::Empty);
    }
    let Read { data, checksum: stored } =
        serde_json::from_slice(contents).map_err(Damage::Envelope)?;
    let computed = go_string_checksum(&data);
    if stored != computed {
        return Err(Damage::Checksum { stored, computed });
    }
    // As bytes, as everybody else parses: for another kind of input all types would have a second
    // parser in the executable.
    serde_json::from_slice(data.as_bytes()).map_err(Damage::Data)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    /// What `allocated_pods_state` of a Go kubelet holds.
    const FROM_GO: &str = r#"{"data":"{\"entries\":{\"pod1\":{\"ContainerResources\":{\"container1\":{\"requests\":{\"cpu\":\"1Ki\",\"memory\":\"1Ki\"}}}}}}","checksum":1178570812}"#;

    #[test]
    fn checksums_equal_the_go_kubelets() {
        let cases = [
            ("", 441_364_273),
            (
                r#"{"entries":{"pod1":{"ContainerResources":{"container1":{"requests":{"cpu":"1Ki","memory":"1Ki"}}}}}}"#,
                1_178_570_812,
            ),
            ("{\"a\":\"ü<&>\u{2028} \\n\"}", 2_292_273_773),
        ];
        for (data, checksum) in cases {
            assert_eq!(go_string_checksum(data), checksum, "{data}");
        }
    }

    #[test]
    fn a_file_of_the_go_kubelet_reads_and_is_written_the_same() {
        let value: serde_json::Value = decode(FROM_GO.as_bytes()).unwrap();
        assert_eq!(
            value["entries"]["pod1"]["ContainerResources"]["container1"]["requests"]["cpu"],
            "1Ki"
        );
        assert_eq!(String::from_utf8(encode(&value).unwrap()).unwrap(), FROM_GO);
    }

    #[test]
    fn go_escapes_html_characters_in_strings() {
        let file =
            br#"{"data":"{\"a\":\"\u00fc\u003c\u0026\u003e\u2028 \\n\"}","checksum":2292273773}"#;
        let value: BTreeMap<String, String> = decode(file).unwrap();
        assert_eq!(value["a"], "ü<&>\u{2028} \n");
    }

    #[test]
    fn fields_of_a_newer_version_do_no_harm() {
        #[derive(Deserialize)]
        struct Known {
            known: u32,
        }
        let data = r#"{"known":7,"newer":[1,{"x":null}]}"#;
        let file = serde_json::json!({
            "version": "v2", "data": data, "checksum": go_string_checksum(data),
        });
        assert_eq!(decode::<Known>(file.to_string().as_bytes()).unwrap().known, 7);
    }

    #[test]
    fn damage_is_told_apart() {
        let data = r#"{"a":"b"}"#;
        let good = go_string_checksum(data);
        let envelope = |checksum: serde_json::Value| {
            serde_json::json!({"data": data, "checksum": checksum}).to_string()
        };
        let deep = "[".repeat(100_000);
        let cases = [
            (String::new(), "the file is empty"),
            ("{}".into(), "the file is not a checkpoint"),
            ("null".into(), "the file is not a checkpoint"),
            ("\0".repeat(4096), "the file is not a checkpoint"),
            (deep, "the file is not a checkpoint"),
            (envelope(serde_json::json!("7")), "the file is not a checkpoint"),
            (envelope(serde_json::json!(-1)), "the file is not a checkpoint"),
            (envelope(serde_json::json!(1.5)), "the file is not a checkpoint"),
            (format!("{}x", envelope(good.into())), "the file is not a checkpoint"),
        ];
        for (file, expected) in cases {
            let damage = decode::<BTreeMap<String, String>>(file.as_bytes()).unwrap_err();
            assert_eq!(damage.to_string(), expected, "{file:.60}");
        }
        let wrong = decode::<BTreeMap<String, String>>(envelope((good + 1).into()).as_bytes());
        assert!(
            matches!(
                wrong,
                Err(Damage::Checksum { stored, computed }) if stored == good + 1 && computed == good
            ),
            "{wrong:?}"
        );
        let other = decode::<Vec<u32>>(envelope(good.into()).as_bytes()).unwrap_err();
        assert!(matches!(other, Damage::Data(_)), "{other}");
    }

    proptest! {
        #[test]
        fn any_bytes_are_damage_or_a_value(bytes in proptest::collection::vec(any::<u8>(), 0..512)) {
            let _ = decode::<serde_json::Value>(&bytes);
        }

        #[test]
        fn what_was_saved_comes_back(value in proptest::collection::btree_map(".*", ".*", 0..8)) {
            let file = encode(&value).unwrap();
            prop_assert_eq!(decode::<BTreeMap<String, String>>(&file).unwrap(), value);
        }

        #[test]
        fn cut_short_anywhere_is_damage(
            value in proptest::collection::btree_map("[a-z]{1,8}", ".*", 0..4),
        ) {
            let file = encode(&value).unwrap();
            for length in 0..file.len() {
                prop_assert!(decode::<BTreeMap<String, String>>(&file[..length]).is_err());
            }
        }

        /// One wrong byte in the file is damage, or changes nothing about the value (white space
        /// cannot appear from one changed byte, but the case of an escape's digits can change).
        #[test]
        fn a_wrong_byte_never_gives_another_value(
            value in proptest::collection::btree_map("[a-z]{1,8}", ".*", 0..4),
            position: proptest::sample::Index,
            byte: u8,
        ) {
            let mut file = encode(&value).unwrap();
            let position = position.index(file.len());
            file[position] = byte;
            if let Ok(read) = decode::<BTreeMap<String, String>>(&file) {
                prop_assert_eq!(read, value);
            }
        }
    }
}
