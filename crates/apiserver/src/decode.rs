//! From JSON to objects, each on its own, so that one that cannot be understood is no reason to
//! lose the others.

use serde::Deserialize;
use serde::de::{DeserializeOwned, Error as _};
use serde_json::value::RawValue;

use crate::objects::ApiObject;

mod place;

use place::path_of;

/// Which object.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey {
    /// Empty for objects that are in no namespace.
    pub namespace: String,
    /// The name.
    pub name: String,
    /// The identity: a later object of the same name has another one.
    pub uid: String,
}

/// An object that is there and cannot be understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Undecodable {
    /// Which one; parts of it are empty if not even these could be read.
    pub key: ObjectKey,
    /// Why, with the path of the field.
    pub error: String,
}

/// All objects that match, as of one moment.
#[derive(Clone, Debug)]
pub struct FullSet<K> {
    /// Those that were understood.
    pub objects: Vec<K>,
    /// Those that were not. They exist: whoever removes what is missing has to leave these.
    pub undecodable: Vec<Undecodable>,
    /// The moment.
    pub resource_version: String,
}

impl<K> Default for FullSet<K> {
    fn default() -> Self {
        Self { objects: Vec::new(), undecodable: Vec::new(), resource_version: String::new() }
    }
}

/// A part of a list.
pub(crate) struct Page<K> {
    pub(crate) set: FullSet<K>,
    /// There is more.
    pub(crate) continue_token: Option<String>,
}

#[derive(Deserialize)]
struct RawList<'a> {
    #[serde(default)]
    metadata: RawListMeta,
    #[serde(borrow, default)]
    items: Option<Vec<&'a RawValue>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawListMeta {
    #[serde(default)]
    resource_version: String,
    #[serde(default, rename = "continue")]
    continue_token: String,
}

impl<K: ApiObject> Page<K> {
    pub(crate) fn decode(body: &[u8]) -> Result<Self, serde_json::Error> {
        let list: RawList<'_> = serde_json::from_slice(body)?;
        let items = list.items.unwrap_or_default();
        let mut set = FullSet {
            objects: Vec::with_capacity(items.len()),
            undecodable: Vec::new(),
            resource_version: list.metadata.resource_version,
        };
        for item in items {
            match decode_object(item.get().as_bytes()) {
                Ok(object) => set.objects.push(object),
                Err(error) => set
                    .undecodable
                    .push(Undecodable { key: Identity::of(item).key(), error: error.to_string() }),
            }
        }
        let continue_token = Some(list.metadata.continue_token).filter(|token| !token.is_empty());
        Ok(Self { set, continue_token })
    }
}

/// What tells one object, and one version of it, from others.
#[derive(Default, Deserialize)]
pub(crate) struct Identity {
    #[serde(default)]
    metadata: IdentityMeta,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct IdentityMeta {
    #[serde(default)]
    namespace: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    uid: String,
    #[serde(default)]
    resource_version: String,
}

impl Identity {
    pub(crate) fn of(object: &RawValue) -> Self {
        serde_json::from_str(object.get()).unwrap_or_default()
    }

    pub(crate) fn key(&self) -> ObjectKey {
        let IdentityMeta { namespace, name, uid, .. } = &self.metadata;
        ObjectKey { namespace: namespace.clone(), name: name.clone(), uid: uid.clone() }
    }

    pub(crate) fn resource_version(&self) -> &str {
        &self.metadata.resource_version
    }
}

/// One object. Who manages which field is of no use here and often half of it: it goes at once.
pub(crate) fn decode_object<K: ApiObject>(json: &[u8]) -> Result<K, serde_json::Error> {
    let mut object: K = decode_with_path(json, K::kind(&()) == "Secret")?;
    object.meta_mut().managed_fields = None;
    Ok(object)
}

/// Parses, and says the path of the field where that fails. The text of an error quotes the value,
/// which has to stay out if that is a secret.
fn decode_with_path<T: DeserializeOwned>(
    json: &[u8],
    is_secret: bool,
) -> Result<T, serde_json::Error> {
    serde_json::from_slice(json).map_err(|error| {
        let path = path_of(json, &error);
        let text = if is_secret { "it cannot be decoded".to_owned() } else { error.to_string() };
        serde_json::Error::custom(match path.as_str() {
            "" => text,
            path => format!("{path}: {text}"),
        })
    })
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{Pod, Secret};

    use super::*;

    #[test]
    fn one_bad_object_does_not_hide_the_others() {
        let body = br#"{"kind":"PodList","apiVersion":"v1",
            "metadata":{"resourceVersion":"7","continue":"more"},
            "items":[
              {"metadata":{"name":"a","namespace":"n","uid":"1","managedFields":[{"manager":"x"}]},
               "spec":{"containers":[{"name":"c","image":"i"}],"fieldOfTheFuture":{"x":1}}},
              {"metadata":{"name":"b","namespace":"n","uid":"2"},
               "spec":{"containers":[{"name":"c","ports":[{"containerPort":"eighty"}]}]}},
              {"metadata":{"name":"c","namespace":"n","uid":"3"},
               "status":{"phase":"PhaseOfTheFuture"}},
              "not an object"
            ]}"#;
        let page = Page::<Pod>::decode(body).expect("a list");
        assert_eq!(page.continue_token.as_deref(), Some("more"));
        assert_eq!(page.set.resource_version, "7");
        let names: Vec<_> =
            page.set.objects.iter().map(|pod| pod.metadata.name.as_deref()).collect();
        assert_eq!(names, [Some("a"), Some("c")]);
        assert_eq!(page.set.objects[0].metadata.managed_fields, None);
        let bad = &page.set.undecodable;
        assert_eq!(bad.len(), 2);
        assert_eq!(
            bad[0].key,
            ObjectKey { namespace: "n".into(), name: "b".into(), uid: "2".into() }
        );
        assert!(bad[0].error.starts_with("spec.containers[0].ports[0].containerPort: "), "{bad:?}");
        assert_eq!(bad[1].key, ObjectKey::default());
    }

    #[test]
    fn a_list_of_nothing_is_a_list() {
        for body in [&br#"{"metadata":{"resourceVersion":"1"},"items":null}"#[..], b"{}"] {
            assert!(Page::<Pod>::decode(body).expect("a list").set.objects.is_empty());
        }
        assert!(Page::<Pod>::decode(b"[1").is_err());
    }

    #[test]
    fn the_value_of_a_secret_stays_out_of_the_error() {
        let secret = br#"{"metadata":{"name":"s"},"stringData":"hunter2"}"#;
        let error = decode_object::<Secret>(secret).expect_err("no map").to_string();
        assert!(error.contains("stringData") && !error.contains("hunter2"), "{error}");
    }
}
