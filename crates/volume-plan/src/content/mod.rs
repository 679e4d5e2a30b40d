//! Volumes whose files the kubelet writes itself: configMap, secret, downwardAPI, projected.
//!
//! [`ContentVolume`] is what the spec asks for, [`ContentVolume::needs`] what has to be read from
//! the API server for it, and [`compute_payload`] which files it has.

mod nested;
mod path;
mod payload;
#[cfg(test)]
mod tests;
mod trust;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{
    ConfigMap, ConfigMapProjection, ConfigMapVolumeSource, DownwardAPIVolumeFile,
    DownwardAPIVolumeSource, KeyToPath, Pod, ProjectedVolumeSource, Secret, SecretProjection,
    SecretVolumeSource, VolumeProjection,
};
use rubelet_types::{Fetched, ObjectKind};

pub use self::path::PathError;
pub use self::payload::{
    ContentError, ContentFacts, ContentFailure, Payload, PayloadFile, compute_payload,
};
pub use self::trust::TrustBundleSpec;
use crate::{EmptyDirMedium, VolumePlugin, VolumeSpecError};

/// What files are readable for if the spec says nothing.
const DEFAULT_MODE: u32 = 0o644;
/// How long a service account token is asked to live if the spec says nothing.
const DEFAULT_TOKEN_SECONDS: i64 = 3600;

/// A volume whose files the kubelet writes itself.
#[derive(Clone, Debug, PartialEq)]
pub struct ContentVolume {
    /// The plugin it belongs to.
    pub plugin: VolumePlugin,
    /// Where its files live: a ConfigMap's on disk, all others in a tmpfs of their own.
    pub medium: EmptyDirMedium,
    /// Where its files come from; of two with one path, the later one counts.
    pub sources: Vec<ContentSource>,
    /// Directories in it that other volumes are mounted on in some container. They are made with the
    /// volume, because a container runtime cannot make them in what is read-only.
    pub nested_mount_points: Vec<String>,
    default_mode: u32,
}

/// One source of a volume's files.
#[derive(Clone, Debug, PartialEq)]
pub enum ContentSource {
    /// Keys of a ConfigMap or a Secret.
    Object {
        /// Which of the two.
        kind: ObjectKind,
        /// Its name, in the pod's namespace.
        name: String,
        /// The keys to show, and where; all of them if it is empty.
        items: Vec<KeyToPath>,
        /// Neither the object nor a key of it has to exist.
        optional: bool,
    },
    /// What the pod is told about itself.
    DownwardApi(Vec<DownwardAPIVolumeFile>),
    /// A token of the pod's service account.
    ServiceAccountToken {
        /// The token.
        token: TokenSpec,
        /// Its file.
        path: String,
    },
    /// Certificates that the cluster trusts.
    TrustBundle {
        /// Which.
        bundle: TrustBundleSpec,
        /// There need not be any.
        optional: bool,
        /// Their file.
        path: String,
    },
}

/// What a service account token is asked for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TokenSpec {
    /// Whom it is for; none for the API server itself.
    pub audience: Option<String>,
    /// How long it should live, in seconds.
    pub expiration_seconds: i64,
}

/// What has to be read from the API server to know a volume's files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContentNeeds {
    /// Objects of the pod's namespace.
    pub objects: BTreeSet<(ObjectKind, String)>,
    /// Tokens of the pod's service account.
    pub tokens: BTreeSet<TokenSpec>,
    /// Bundles of certificates.
    pub trust_bundles: BTreeSet<TrustBundleSpec>,
}

impl ContentNeeds {
    /// Nothing has to be read.
    pub fn is_empty(&self) -> bool {
        self.objects.is_empty() && self.tokens.is_empty() && self.trust_bundles.is_empty()
    }
}

/// What became of asking for a token.
#[derive(Clone, PartialEq, Eq)]
pub enum TokenOutcome {
    /// Here it is.
    Issued(Arc<str>),
    /// There will be none, as things are; with the text that users read.
    Refused(String),
    /// It cannot be told; with the text that users read.
    Failed(String),
}

/// Without the token.
impl fmt::Debug for TokenOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Issued(_) => f.write_str("Issued"),
            Self::Refused(text) => f.debug_tuple("Refused").field(text).finish(),
            Self::Failed(text) => f.debug_tuple("Failed").field(text).finish(),
        }
    }
}

/// What was read from the API server for a volume's files.
#[derive(Clone, Default)]
pub struct ContentObjects {
    /// ConfigMaps, by name.
    pub config_maps: BTreeMap<String, Fetched<Arc<ConfigMap>>>,
    /// Secrets, by name.
    pub secrets: BTreeMap<String, Fetched<Arc<Secret>>>,
    /// Tokens.
    pub tokens: BTreeMap<TokenSpec, TokenOutcome>,
    /// Bundles of certificates.
    pub trust_bundles: BTreeMap<TrustBundleSpec, Fetched<Vec<String>>>,
}

/// Names only: values are secret.
impl fmt::Debug for ContentObjects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ContentObjects")
            .field("config_maps", &self.config_maps.keys())
            .field("secrets", &self.secrets.keys())
            .field("tokens", &self.tokens)
            .field("trust_bundles", &self.trust_bundles.keys())
            .finish()
    }
}

impl ContentVolume {
    pub(crate) fn config_map(source: &ConfigMapVolumeSource) -> Self {
        let sources = vec![ContentSource::Object {
            kind: ObjectKind::ConfigMap,
            name: source.name.clone(),
            items: source.items.clone().unwrap_or_default(),
            optional: source.optional == Some(true),
        }];
        Self::new(VolumePlugin::ConfigMap, EmptyDirMedium::Disk, source.default_mode, sources)
    }

    pub(crate) fn secret(source: &SecretVolumeSource, memory: EmptyDirMedium) -> Self {
        let sources = vec![ContentSource::Object {
            kind: ObjectKind::Secret,
            name: source.secret_name.clone().unwrap_or_default(),
            items: source.items.clone().unwrap_or_default(),
            optional: source.optional == Some(true),
        }];
        Self::new(VolumePlugin::Secret, memory, source.default_mode, sources)
    }

    pub(crate) fn downward_api(source: &DownwardAPIVolumeSource, memory: EmptyDirMedium) -> Self {
        let sources = vec![ContentSource::DownwardApi(source.items.clone().unwrap_or_default())];
        Self::new(VolumePlugin::DownwardApi, memory, source.default_mode, sources)
    }

    pub(crate) fn projected(
        source: &ProjectedVolumeSource,
        memory: EmptyDirMedium,
    ) -> Result<Self, VolumeSpecError> {
        let sources = source.sources.iter().flatten().filter_map(|p| projection(p).transpose());
        let sources = sources.collect::<Result<Vec<_>, _>>()?;
        Ok(Self::new(VolumePlugin::Projected, memory, source.default_mode, sources))
    }

    fn new(
        plugin: VolumePlugin,
        medium: EmptyDirMedium,
        default_mode: Option<i32>,
        sources: Vec<ContentSource>,
    ) -> Self {
        let default_mode = file_mode(default_mode).unwrap_or(DEFAULT_MODE);
        Self { plugin, medium, sources, nested_mount_points: Vec::new(), default_mode }
    }

    pub(crate) fn in_pod(mut self, pod: &Pod, name: &str) -> Result<Self, VolumeSpecError> {
        self.nested_mount_points = nested::nested_mount_points(pod, name)?;
        Ok(self)
    }

    /// Its kind, as the field of a volume's source names it.
    pub fn kind(&self) -> &'static str {
        match self.plugin {
            VolumePlugin::ConfigMap => "configMap",
            VolumePlugin::Secret => "secret",
            VolumePlugin::DownwardApi => "downwardAPI",
            VolumePlugin::Projected => "projected",
            VolumePlugin::EmptyDir => "emptyDir",
            VolumePlugin::HostPath => "hostPath",
            VolumePlugin::Local => "local",
            VolumePlugin::Nfs => "nfs",
            VolumePlugin::Image => "image",
        }
    }

    /// What has to be read from the API server to know its files.
    pub fn needs(&self) -> ContentNeeds {
        let mut needs = ContentNeeds::default();
        for source in &self.sources {
            match source {
                ContentSource::Object { kind, name, .. } => {
                    needs.objects.insert((*kind, name.clone()));
                }
                ContentSource::ServiceAccountToken { token, .. } => {
                    needs.tokens.insert(token.clone());
                }
                ContentSource::TrustBundle { bundle, .. } => {
                    needs.trust_bundles.insert(bundle.clone());
                }
                ContentSource::DownwardApi(_) => {}
            }
        }
        needs
    }
}

/// None if it asks for nothing. The pattern is exhaustive so that a source which appears in the API
/// cannot be left out unnoticed.
fn projection(projection: &VolumeProjection) -> Result<Option<ContentSource>, VolumeSpecError> {
    let VolumeProjection {
        cluster_trust_bundle,
        config_map,
        downward_api,
        pod_certificate,
        secret,
        service_account_token,
    } = projection;
    if let Some(SecretProjection { name, items, optional }) = secret {
        return Ok(Some(ContentSource::Object {
            kind: ObjectKind::Secret,
            name: name.clone(),
            items: items.clone().unwrap_or_default(),
            optional: *optional == Some(true),
        }));
    }
    if let Some(ConfigMapProjection { name, items, optional }) = config_map {
        return Ok(Some(ContentSource::Object {
            kind: ObjectKind::ConfigMap,
            name: name.clone(),
            items: items.clone().unwrap_or_default(),
            optional: *optional == Some(true),
        }));
    }
    if let Some(source) = downward_api {
        let items = source.items.clone().unwrap_or_default();
        return Ok(Some(ContentSource::DownwardApi(items)));
    }
    if let Some(source) = service_account_token {
        let token = TokenSpec {
            audience: source.audience.clone().filter(|audience| !audience.is_empty()),
            expiration_seconds: source.expiration_seconds.unwrap_or(DEFAULT_TOKEN_SECONDS),
        };
        return Ok(Some(ContentSource::ServiceAccountToken { token, path: source.path.clone() }));
    }
    let gated = |source, gate| Err(VolumeSpecError::ProjectionGate { source_kind: source, gate });
    if let Some(source) = cluster_trust_bundle {
        let bundle = TrustBundleSpec::from_spec(source).ok_or(VolumeSpecError::NoTrustBundle)?;
        let (optional, path) = (source.optional == Some(true), source.path.clone());
        return Ok(Some(ContentSource::TrustBundle { bundle, optional, path }));
    }
    if pod_certificate.is_some() {
        return gated("podCertificate", "PodCertificateRequest");
    }
    Ok(None)
}

/// The permission bits of a mode; none for what is no mode.
fn file_mode(mode: Option<i32>) -> Option<u32> {
    mode.and_then(|mode| u32::try_from(mode).ok()).map(|mode| mode & 0o7777)
}
