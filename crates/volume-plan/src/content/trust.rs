//! Certificates that a cluster trusts, as files show them.

use std::collections::BTreeSet;
use std::fmt::Write;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::api::core::v1::ClusterTrustBundleProjection;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

/// Characters of a line of PEM.
const LINE: usize = 64;

/// Which ClusterTrustBundles a file shows.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TrustBundleSpec {
    /// The one of this name.
    Name(String),
    /// All of a signer that have some labels.
    Signer {
        /// The signer.
        signer: String,
        /// A label selector as the API writes it; none if it selects nothing at all.
        labels: Option<String>,
    },
}

impl TrustBundleSpec {
    /// None if it names neither a bundle nor a signer.
    pub(super) fn from_spec(source: &ClusterTrustBundleProjection) -> Option<Self> {
        if let Some(name) = &source.name {
            return Some(Self::Name(name.clone()));
        }
        let signer = source.signer_name.clone()?;
        let labels = source.label_selector.as_ref().map(selector_text);
        Some(Self::Signer { signer, labels })
    }
}

/// A label selector as the API takes it in a request.
fn selector_text(selector: &LabelSelector) -> String {
    let equal = selector.match_labels.iter().flatten().map(|(key, value)| format!("{key}={value}"));
    let expressions = selector.match_expressions.iter().flatten().map(|one| {
        let (key, values) = (&one.key, one.values.iter().flatten().cloned().collect::<Vec<_>>());
        match one.operator.as_str() {
            "In" => format!("{key} in ({})", values.join(",")),
            "NotIn" => format!("{key} notin ({})", values.join(",")),
            "DoesNotExist" => format!("!{key}"),
            _ => key.clone(),
        }
    });
    equal.chain(expressions).collect::<Vec<_>>().join(",")
}

/// All certificates of some bundles, each once, in an order that does not depend on theirs: what is
/// written in another way is not another file.
pub(super) fn merge_trust_anchors(bundles: &[String]) -> String {
    let anchors: BTreeSet<Vec<u8>> = bundles.iter().flat_map(|bundle| pem_blocks(bundle)).collect();
    let mut text = String::new();
    for anchor in anchors {
        text.push_str("-----BEGIN CERTIFICATE-----\n");
        let encoded = STANDARD.encode(anchor);
        let mut rest = encoded.as_str();
        while !rest.is_empty() {
            let (line, more) = rest.split_at(rest.len().min(LINE));
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{line}");
            rest = more;
        }
        text.push_str("-----END CERTIFICATE-----\n");
    }
    text
}

/// What is in the blocks of a PEM file; what is no block is left out.
fn pem_blocks(text: &str) -> Vec<Vec<u8>> {
    let mut blocks = Vec::new();
    let mut body: Option<String> = None;
    for line in text.lines().map(str::trim) {
        if line.starts_with("-----BEGIN ") {
            body = Some(String::new());
        } else if line.starts_with("-----END ") {
            let decoded = body.take().and_then(|body| STANDARD.decode(body).ok());
            blocks.extend(decoded.filter(|decoded| !decoded.is_empty()));
        } else if let Some(body) = &mut body
            // Headers, which say nothing about a certificate.
            && !line.contains(':')
        {
            body.push_str(line);
        }
    }
    blocks
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn block(content: &[u8], kind: &str) -> String {
        let encoded = STANDARD.encode(content);
        format!("words\n-----BEGIN {kind}-----\nKey: value\n{encoded}\n-----END {kind}-----\n")
    }

    #[test]
    fn every_certificate_is_there_once_whatever_the_order() {
        let (one, two) = (vec![1_u8; 60], vec![2_u8; 10]);
        let (a, b) = (block(&one, "CERTIFICATE"), block(&two, "OTHER"));
        let merged = merge_trust_anchors(&[format!("{a}{b}"), a.clone()]);
        assert_eq!(merged, merge_trust_anchors(&[b, a]));
        assert_eq!(merged.matches("BEGIN CERTIFICATE").count(), 2);
        assert!(merged.lines().all(|line| line.len() <= LINE));
        assert_eq!(pem_blocks(&merged), [one, two]);
        assert_eq!(merge_trust_anchors(&["nothing".to_owned()]), "");
    }

    #[test]
    fn what_is_meant_is_read() {
        let read = |source: serde_json::Value| {
            TrustBundleSpec::from_spec(&serde_json::from_value(source).unwrap())
        };
        assert_eq!(
            read(json!({"path": "p", "name": "a"})),
            Some(TrustBundleSpec::Name("a".to_owned()))
        );
        let of_signer = |labels: Option<&str>| {
            let (signer, labels) = ("s/x".to_owned(), labels.map(str::to_owned));
            Some(TrustBundleSpec::Signer { signer, labels })
        };
        assert_eq!(read(json!({"path": "p", "signerName": "s/x"})), of_signer(None));
        assert_eq!(
            read(json!({"path": "p", "signerName": "s/x", "labelSelector": {}})),
            of_signer(Some(""))
        );
        assert_eq!(
            read(json!({"path": "p", "signerName": "s/x", "labelSelector": {
            "matchLabels": {"a": "b"},
            "matchExpressions": [
                {"key": "c", "operator": "In", "values": ["d", "e"]},
                {"key": "f", "operator": "DoesNotExist"},
            ]}})),
            of_signer(Some("a=b,c in (d,e),!f"))
        );
        assert_eq!(read(json!({"path": "p"})), None);
    }
}
