//! The records of pulls, in upstream's form (`kubelet.config.k8s.io/v1beta1`), so that a node can
//! change hands.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::credentials::{CredentialOrigin, ObjectCoordinates, PullCredential};

/// The version that is written.
const API_VERSION: &str = "kubelet.config.k8s.io/v1beta1";
/// The versions that are read.
const API_VERSIONS: [&str; 2] = [API_VERSION, "kubelet.config.k8s.io/v1alpha1"];

/// An image is pulled, or was when the kubelet ended.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct ImagePullIntent {
    kind: String,
    api_version: String,
    /// As the pod's spec writes it.
    image: String,
}

/// An image was pulled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct ImagePulledRecord {
    kind: String,
    api_version: String,
    #[serde(default, serialize_with = "write_time", deserialize_with = "read_time")]
    pub(super) last_updated_time: Option<Timestamp>,
    /// The runtime's reference.
    pub(super) image_ref: String,
    /// What it was pulled with, by its names without tag and digest.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) credential_mapping: BTreeMap<String, ImagePullCredentials>,
}

/// With what an image was pulled.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct ImagePullCredentials {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) kubernetes_secrets: Vec<ImagePullSecret>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) kubernetes_service_accounts: Vec<ImagePullServiceAccount>,
    /// With something that all pods of the node have, or with nothing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) node_pods_accessible: bool,
}

/// A Secret, and the hash of what it held.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct ImagePullSecret {
    uid: String,
    namespace: String,
    name: String,
    pub(super) credential_hash: String,
}

/// A service account.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ImagePullServiceAccount {
    uid: String,
    namespace: String,
    name: String,
}

impl ImagePullSecret {
    pub(super) fn new(secret: &ObjectCoordinates, credential_hash: String) -> Self {
        let ObjectCoordinates { namespace, name, uid } = secret.clone();
        Self { uid, namespace, name, credential_hash }
    }

    /// In the order in which records list them.
    pub(super) fn coordinates(&self) -> (&str, &str, &str) {
        (&self.namespace, &self.name, &self.uid)
    }
}

impl ImagePullServiceAccount {
    fn coordinates(&self) -> (&str, &str, &str) {
        (&self.namespace, &self.name, &self.uid)
    }

    pub(super) fn is(&self, account: &ObjectCoordinates) -> bool {
        self.coordinates() == (&account.namespace, &account.name, &account.uid)
    }
}

impl ImagePullCredentials {
    /// What is recorded of a pull with that credential, or with none.
    pub(super) fn of_pull(used: Option<&PullCredential>) -> Self {
        let mut credentials = Self::default();
        match used.map(|used| (used, used.origin())) {
            None | Some((_, CredentialOrigin::Node)) => credentials.node_pods_accessible = true,
            Some((used, CredentialOrigin::Secret(secret))) => {
                credentials.kubernetes_secrets.push(ImagePullSecret::new(secret, used.hash()));
            }
            Some((_, CredentialOrigin::ServiceAccount(account))) => {
                let ObjectCoordinates { namespace, name, uid } = account.clone();
                let account = ImagePullServiceAccount { uid, namespace, name };
                credentials.kubernetes_service_accounts.push(account);
            }
        }
        credentials
    }

    /// Nobody is known to have what it takes.
    pub(super) fn is_empty(&self) -> bool {
        !self.node_pods_accessible
            && self.kubernetes_secrets.is_empty()
            && self.kubernetes_service_accounts.is_empty()
    }

    /// Adds what `more` says; false if it says nothing new.
    fn merge(&mut self, more: &Self) -> bool {
        if self.node_pods_accessible || more.is_empty() {
            return false;
        }
        if more.node_pods_accessible {
            *self = Self { node_pods_accessible: true, ..Self::default() };
            return true;
        }
        let mut changed = false;
        for secret in &more.kubernetes_secrets {
            let known = self.kubernetes_secrets.iter_mut();
            match known.into_iter().find(|it| it.coordinates() == secret.coordinates()) {
                Some(known) if known == secret => continue,
                Some(known) => *known = secret.clone(),
                None => self.kubernetes_secrets.push(secret.clone()),
            }
            changed = true;
        }
        for account in &more.kubernetes_service_accounts {
            if !self.kubernetes_service_accounts.contains(account) {
                self.kubernetes_service_accounts.push(account.clone());
                changed = true;
            }
        }
        self.kubernetes_secrets.sort_by(|a, b| a.coordinates().cmp(&b.coordinates()));
        self.kubernetes_service_accounts.sort_by(|a, b| a.coordinates().cmp(&b.coordinates()));
        changed
    }
}

/// The record after a pull of `image_ref` under the name `name` with `credentials`, of which none
/// are known if the kubelet that pulled it has ended; none if nothing changes.
pub(super) fn merge_credentials(
    record: Option<ImagePulledRecord>,
    image_ref: &str,
    name: &str,
    credentials: Option<&ImagePullCredentials>,
    now: Timestamp,
) -> Option<ImagePulledRecord> {
    let is_new = record.is_none();
    let mut record = record.unwrap_or_else(|| ImagePulledRecord {
        kind: "ImagePulledRecord".to_owned(),
        api_version: API_VERSION.to_owned(),
        last_updated_time: None,
        image_ref: image_ref.to_owned(),
        credential_mapping: BTreeMap::new(),
    });
    let changed = credentials.filter(|credentials| !credentials.is_empty()).is_some_and(|more| {
        record.credential_mapping.entry(name.to_owned()).or_default().merge(more)
    });
    if !is_new && !changed {
        return None;
    }
    record.last_updated_time = Some(now);
    Some(record)
}

/// The text of an intent's file.
pub(super) fn encode_intent(image: &str) -> serde_json::Result<Vec<u8>> {
    encode(&ImagePullIntent {
        kind: "ImagePullIntent".to_owned(),
        api_version: API_VERSION.to_owned(),
        image: image.to_owned(),
    })
}

/// The image of an intent.
pub(super) fn decode_intent(text: &[u8]) -> Result<String, String> {
    let intent: ImagePullIntent = serde_json::from_slice(text).map_err(|it| it.to_string())?;
    check(&intent.kind, "ImagePullIntent", &intent.api_version)?;
    Ok(intent.image)
}

/// The text of a record's file.
pub(super) fn encode_record(record: &ImagePulledRecord) -> serde_json::Result<Vec<u8>> {
    encode(record)
}

/// The record of a file, in the version that is written.
pub(super) fn decode_record(text: &[u8]) -> Result<ImagePulledRecord, String> {
    let record: ImagePulledRecord = serde_json::from_slice(text).map_err(|it| it.to_string())?;
    check(&record.kind, "ImagePulledRecord", &record.api_version)?;
    Ok(ImagePulledRecord { api_version: API_VERSION.to_owned(), ..record })
}

fn encode(value: &impl Serialize) -> serde_json::Result<Vec<u8>> {
    let mut text = serde_json::to_vec(value)?;
    text.push(b'\n');
    Ok(text)
}

fn check(kind: &str, expected: &str, api_version: &str) -> Result<(), String> {
    if kind == expected && API_VERSIONS.contains(&api_version) {
        return Ok(());
    }
    Err(format!("it is a {api_version} {kind} instead of a {API_VERSION} {expected}"))
}

/// In whole seconds, as the API writes times.
fn write_time<S: Serializer>(time: &Option<Timestamp>, serializer: S) -> Result<S::Ok, S::Error> {
    time.map(|time| time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()).serialize(serializer)
}

fn read_time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Timestamp>, D::Error> {
    Option::deserialize(deserializer)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORD: &str = r#"{"kind":"ImagePulledRecord","apiVersion":"kubelet.config.k8s.io/v1beta1","lastUpdatedTime":"2026-10-21T12:26:40Z","imageRef":"sha256:a","credentialMapping":{"r.io/team/app":{"kubernetesSecrets":[{"uid":"u","namespace":"ns","name":"key","credentialHash":"h"}],"kubernetesServiceAccounts":[{"uid":"s","namespace":"ns","name":"robot"}]},"r.io/open":{"nodePodsAccessible":true}}}"#;
    const INTENT: &str = r#"{"kind":"ImagePullIntent","apiVersion":"kubelet.config.k8s.io/v1beta1","image":"r.io/app:1"}"#;

    #[test]
    fn records_are_read_and_written_as_upstream_does() {
        for text in [
            RECORD,
            r#"{"kind":"ImagePulledRecord","apiVersion":"kubelet.config.k8s.io/v1beta1","lastUpdatedTime":null,"imageRef":"a"}"#,
        ] {
            let record = decode_record(text.as_bytes()).unwrap();
            // The names are sorted here, as upstream sorts them.
            let written = String::from_utf8(encode_record(&record).unwrap()).unwrap();
            let value = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
            assert_eq!(value(&written), value(text));
            assert!(written.ends_with("}\n"), "{written}");
            let older = text.replace("v1beta1", "v1alpha1");
            assert_eq!(decode_record(older.as_bytes()), Ok(record));
        }
        assert_eq!(decode_intent(INTENT.as_bytes()).unwrap(), "r.io/app:1");
        assert_eq!(encode_intent("r.io/app:1").unwrap(), format!("{INTENT}\n").as_bytes());
    }

    #[test]
    fn what_is_no_record_is_refused() {
        for text in [
            "",
            "{}",
            "null",
            INTENT,
            &RECORD.replace("v1beta1", "v2"),
            &RECORD.replace("\"imageRef\"", "\"image\""),
            &RECORD.replace("\"credentialHash\":\"h\"", "\"credentialHash\":\"h\",\"more\":1"),
            &RECORD[..RECORD.len() - 1],
        ] {
            assert!(decode_record(text.as_bytes()).is_err(), "{text}");
        }
        assert!(decode_intent(RECORD.as_bytes()).is_err());
    }

    fn credentials(text: &str) -> ImagePullCredentials {
        let mut credentials = ImagePullCredentials::default();
        for word in text.split_whitespace() {
            match word.split(':').collect::<Vec<_>>()[..] {
                ["node"] => credentials.node_pods_accessible = true,
                ["secret", name, hash] => credentials.kubernetes_secrets.push(ImagePullSecret {
                    uid: format!("uid of {name}"),
                    namespace: "ns".to_owned(),
                    name: name.to_owned(),
                    credential_hash: hash.to_owned(),
                }),
                ["account", name] => {
                    credentials.kubernetes_service_accounts.push(ImagePullServiceAccount {
                        uid: format!("uid of {name}"),
                        namespace: "ns".to_owned(),
                        name: name.to_owned(),
                    });
                }
                _ => panic!("{word}"),
            }
        }
        credentials
    }

    #[test]
    fn records_grow_by_what_is_new() {
        let then: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let now: Timestamp = "2026-01-02T00:00:00Z".parse().unwrap();
        // What is known, what comes, and what is written then; nothing if nothing changes.
        for (known, more, expected) in [
            ("secret:a:1", "secret:a:1", None),
            ("secret:a:1", "secret:a:2", Some("secret:a:2")),
            ("secret:b:1", "secret:a:2", Some("secret:a:2 secret:b:1")),
            ("secret:b:1", "secret:c:1", Some("secret:b:1 secret:c:1")),
            ("secret:a:1", "account:x", Some("secret:a:1 account:x")),
            ("account:x", "account:x", None),
            ("account:y", "account:x", Some("account:x account:y")),
            ("account:y", "secret:a:1", Some("secret:a:1 account:y")),
            ("secret:a:1 account:x", "node", Some("node")),
            ("node", "secret:a:1", None),
            ("node", "account:x", None),
            ("secret:a:1", "", None),
            ("", "secret:a:1", Some("secret:a:1")),
        ] {
            let record = merge_credentials(None, "ref", "n", Some(&credentials(known)), then);
            let merged = merge_credentials(record, "ref", "n", Some(&credentials(more)), now);
            let found = merged.map(|merged| {
                assert_eq!(merged.last_updated_time, Some(now));
                merged.credential_mapping["n"].clone()
            });
            assert_eq!(found, expected.map(credentials), "{known} + {more}");
        }
        let first = merge_credentials(None, "ref", "n", None, then).unwrap();
        assert_eq!(first.credential_mapping.len(), 0, "it was pulled, and nobody knows by whom");
        assert_eq!(merge_credentials(Some(first.clone()), "ref", "n", None, now), None);
        let second = merge_credentials(Some(first), "ref", "n", Some(&credentials("node")), now);
        let third =
            merge_credentials(second, "ref", "other", Some(&credentials("secret:a:1")), now);
        assert_eq!(third.unwrap().credential_mapping.len(), 2, "each name has its own");
    }
}
