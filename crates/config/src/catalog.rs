//! All names that users can write, for documentation and its check.

use serde::de::{DeserializeOwned, Deserializer, Visitor, value};
use serde::forward_to_deserialize_any;

use crate::parts::{
    AnonymousAuthentication, CrashLoopBackOff, FormatOptions, KubeletAuthentication,
    KubeletAuthorization, LoggingConfiguration, MemoryReservation, MemorySwap, OutputRouting,
    ShutdownGracePeriodByPodPriority, TracingConfiguration, UserNamespaces, VModuleItem,
    WebhookAuthentication, WebhookAuthorization, X509Authentication,
};
use crate::{FlagSpec, Gate, KubeletConfiguration};

/// Names of all flags, without dashes.
pub fn flag_names() -> impl Iterator<Item = &'static str> {
    FlagSpec::all().map(|flag| flag.name)
}

/// Names of all feature gates that the kubelet looks at.
pub fn feature_gate_names() -> impl Iterator<Item = &'static str> {
    Gate::ALL.iter().map(|gate| gate.name())
}

/// Paths of all fields of `KubeletConfiguration`, objects themselves left out
/// (`authentication.webhook.enabled`, `reservedMemory[].numaNode`).
pub fn field_paths() -> Vec<String> {
    let objects: &[(&str, &[&str])] = &[
        ("authentication", fields_of::<KubeletAuthentication>()),
        ("authentication.x509", fields_of::<X509Authentication>()),
        ("authentication.webhook", fields_of::<WebhookAuthentication>()),
        ("authentication.anonymous", fields_of::<AnonymousAuthentication>()),
        ("authorization", fields_of::<KubeletAuthorization>()),
        ("authorization.webhook", fields_of::<WebhookAuthorization>()),
        ("memorySwap", fields_of::<MemorySwap>()),
        ("logging", fields_of::<LoggingConfiguration>()),
        ("logging.vmodule", fields_of::<VModuleItem>()),
        ("logging.options", fields_of::<FormatOptions>()),
        ("logging.options.text", fields_of::<OutputRouting>()),
        ("logging.options.json", fields_of::<OutputRouting>()),
        ("crashLoopBackOff", fields_of::<CrashLoopBackOff>()),
        ("shutdownGracePeriodByPodPriority", fields_of::<ShutdownGracePeriodByPodPriority>()),
        ("reservedMemory", fields_of::<MemoryReservation>()),
        ("tracing", fields_of::<TracingConfiguration>()),
        ("userNamespaces", fields_of::<UserNamespaces>()),
    ];
    let lists = ["logging.vmodule", "shutdownGracePeriodByPodPriority", "reservedMemory"];
    let mut paths = Vec::new();
    let mut waiting: Vec<(String, String)> = names("", fields_of::<KubeletConfiguration>());
    waiting.reverse();
    while let Some((path, shown)) = waiting.pop() {
        match objects.iter().find(|(object, _)| *object == path) {
            Some((_, fields)) => {
                let suffix = if lists.contains(&path.as_str()) { "[]" } else { "" };
                let mut inner = names(&path, fields);
                for (_, inner_shown) in &mut inner {
                    let name = inner_shown.rsplit('.').next().unwrap_or_default().to_owned();
                    *inner_shown = format!("{shown}{suffix}.{name}");
                }
                waiting.extend(inner.into_iter().rev());
            }
            None => paths.push(shown),
        }
    }
    paths
}

/// Pairs of plain path and shown path.
fn names(object: &str, fields: &[&str]) -> Vec<(String, String)> {
    let path = |field: &&str| {
        if object.is_empty() { (*field).to_owned() } else { format!("{object}.{field}") }
    };
    fields.iter().map(path).map(|path| (path.clone(), path)).collect()
}

/// The names that a derived `Deserialize` of a struct asks for.
fn fields_of<T: DeserializeOwned>() -> &'static [&'static str] {
    let mut fields: &'static [&'static str] = &[];
    // It never yields a value: the only thing of interest is the question.
    let _ = T::deserialize(FieldNames { fields: &mut fields });
    fields
}

struct FieldNames<'a> {
    fields: &'a mut &'static [&'static str],
}

impl<'de> Deserializer<'de> for FieldNames<'_> {
    type Error = value::Error;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Self::Error> {
        Err(serde::de::Error::custom("only the field names are wanted"))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        *self.fields = fields;
        self.deserialize_any(visitor)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option
        unit unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_opened() {
        let paths = field_paths();
        for path in [
            "enableServer",
            "authentication.x509.clientCAFile",
            "authorization.webhook.cacheUnauthorizedTTL",
            "logging.options.json.infoBufferSize",
            "logging.vmodule[].filePattern",
            "reservedMemory[].limits",
            "userNamespaces.idsPerPod",
        ] {
            assert!(paths.iter().any(|known| known == path), "{path} is missing in {paths:?}");
        }
        assert!(!paths.iter().any(|path| path == "authentication" || path == "logging.options"));
        assert!(paths.len() > 120, "{}", paths.len());
    }

    #[test]
    fn flags_name_fields_that_exist() {
        let paths = field_paths();
        for flag in FlagSpec::all() {
            let Some(field) = flag.field else { continue };
            let exists = paths.iter().any(|path| {
                path == field || path.strip_prefix(field).is_some_and(|rest| rest.starts_with("[]"))
            });
            assert!(exists, "--{} sets {field}", flag.name);
        }
    }
}
