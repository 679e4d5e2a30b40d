use std::fmt;

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use rubelet_apiserver::ApiObject;
use rubelet_types::ObjectKind;

/// A kind of object that pods refer to.
pub trait ReferredObject:
    ApiObject<Scope = k8s_openapi::NamespaceResourceScope> + Clone + PartialEq + fmt::Debug
{
    /// Which of the kinds.
    const KIND: ObjectKind;

    /// It will not change any more.
    fn is_immutable(&self) -> bool;

    /// Its metadata.
    fn metadata(&mut self) -> &mut ObjectMeta;

    /// Without what nobody here reads. Annotations are often a second copy of everything
    /// (`kubectl.kubernetes.io/last-applied-configuration`); and what differs in nothing else is not
    /// a change.
    fn slim(mut self) -> Self {
        let metadata = self.metadata();
        *metadata = ObjectMeta {
            name: metadata.name.take(),
            namespace: metadata.namespace.take(),
            uid: metadata.uid.take(),
            ..ObjectMeta::default()
        };
        self
    }
}

impl ReferredObject for ConfigMap {
    const KIND: ObjectKind = ObjectKind::ConfigMap;

    fn is_immutable(&self) -> bool {
        self.immutable == Some(true)
    }

    fn metadata(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

impl ReferredObject for Secret {
    const KIND: ObjectKind = ObjectKind::Secret;

    fn is_immutable(&self) -> bool {
        self.immutable == Some(true)
    }

    fn metadata(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}
