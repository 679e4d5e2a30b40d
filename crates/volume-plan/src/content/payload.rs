use std::collections::BTreeMap;
use std::fmt;

use k8s_openapi::api::core::v1::{DownwardAPIVolumeFile, KeyToPath, Pod};
use rubelet_types::{
    ContainerKind, Fetched, ObjectKind, ResourceAmounts, ResourceFieldError, containers,
    pod_metadata_field, resource_field_value,
};

use super::path::{PathError, check, check_set};
use super::trust::merge_trust_anchors;
use super::{
    ContentObjects, ContentSource, ContentVolume, TokenOutcome, TokenSpec, TrustBundleSpec,
    file_mode,
};

/// Tokens are for whoever runs the containers, and for nobody else.
const TOKEN_MODE: u32 = 0o600;
/// What `fsGroup` may do with files in a volume that is read-only.
const GROUP_READ: u32 = 0o440;

/// What a volume's files depend on beside its spec.
#[derive(Clone, Copy, Debug)]
pub struct ContentFacts<'a> {
    /// The pod.
    pub pod: &'a Pod,
    /// The volume's name.
    pub volume: &'a str,
    /// What the volume needs of the API server; none if there is no API server.
    pub objects: Option<&'a ContentObjects>,
    /// What the node can give: a missing limit counts as all of it.
    pub allocatable: &'a ResourceAmounts,
    /// The group of all files (`fsGroup`).
    pub fs_group: Option<u32>,
}

/// One file of a volume.
#[derive(Clone, PartialEq, Eq)]
pub struct PayloadFile {
    /// What is in it.
    pub content: Vec<u8>,
    /// Its permissions.
    pub mode: u32,
    /// Whom it belongs to; none for root.
    pub owner: Option<u32>,
}

/// Without the content, which may be secret.
impl fmt::Debug for PayloadFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PayloadFile")
            .field("bytes", &self.content.len())
            .field("mode", &format_args!("{:o}", self.mode))
            .field("owner", &self.owner)
            .finish()
    }
}

/// All files of a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Payload {
    /// By their paths, which are clean, relative, and lead through no other file.
    pub files: BTreeMap<String, PayloadFile>,
    /// Group of everything; none for root's.
    pub group: Option<u32>,
}

/// Why one source has no files to give.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ContentFailure {
    /// There is no API server to read from.
    #[error("Cannot setup {kind} volume {volume} because kube client is not configured")]
    NoApiServer {
        /// The volume's kind, as its spec names it.
        kind: &'static str,
        /// The volume.
        volume: String,
    },
    /// The object does not exist.
    #[error("{} {name:?} not found", kind.resource())]
    ObjectNotFound {
        /// What it is.
        kind: ObjectKind,
        /// Its name.
        name: String,
    },
    /// It cannot be told: the object could not be read, or the token not be had.
    #[error("{0}")]
    Unreachable(String),
    /// There is no token to be had.
    #[error("{0}")]
    TokenRefused(String),
    /// There are no such certificates.
    #[error("{}", missing_bundle(.0))]
    TrustBundleNotFound(TrustBundleSpec),
    /// The object has no such key.
    #[error("references non-existent {} key: {key}", key_noun(*kind))]
    KeyNotFound {
        /// What the object is.
        kind: ObjectKind,
        /// The key.
        key: String,
    },
    /// The field is not one that files can tell.
    #[error("unsupported fieldPath: {0}")]
    UnsupportedField(String),
    /// A resource that cannot be referred to so.
    #[error(transparent)]
    Resource(#[from] ResourceFieldError),
    /// A path that no file may have.
    #[error(transparent)]
    Path(#[from] PathError),
}

fn missing_bundle(bundle: &TrustBundleSpec) -> String {
    match bundle {
        TrustBundleSpec::Name(name) => format!(
            "while getting ClusterTrustBundle: clustertrustbundle.certificates.k8s.io {name:?} not \
             found"
        ),
        TrustBundleSpec::Signer { .. } => {
            "combination of signerName and labelSelector matched zero ClusterTrustBundles"
                .to_owned()
        }
    }
}

fn key_noun(kind: ObjectKind) -> &'static str {
    match kind {
        ObjectKind::ConfigMap => "config",
        ObjectKind::Secret => "secret",
    }
}

/// A volume's files cannot be told. Carries what is wrong with each source; never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContentError(pub Vec<ContentFailure>);

impl ContentError {
    /// All that is wrong is that the API server did not answer, or answered something that passes:
    /// files that were written before are as good as can be had.
    pub fn is_unreachable(&self) -> bool {
        self.0.iter().all(|failure| matches!(failure, ContentFailure::Unreachable(_)))
    }
}

impl fmt::Display for ContentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut texts: Vec<String> = Vec::new();
        for failure in &self.0 {
            let text = failure.to_string();
            if !texts.contains(&text) {
                texts.push(text);
            }
        }
        match texts.as_slice() {
            [text] => f.write_str(text),
            texts => write!(f, "[{}]", texts.join(", ")),
        }
    }
}

impl std::error::Error for ContentError {}

/// The files of a volume.
///
/// # Errors
///
/// Some source that is not optional has nothing to give, or a path is not one that files may have.
pub fn compute_payload(
    volume: &ContentVolume,
    facts: &ContentFacts<'_>,
) -> Result<Payload, ContentError> {
    let nothing_read = ContentObjects::default();
    let objects = match facts.objects {
        Some(objects) => objects,
        None if volume.needs().is_empty() => &nothing_read,
        None => {
            let (kind, volume) = (volume.kind(), facts.volume.to_owned());
            return Err(ContentError(vec![ContentFailure::NoApiServer { kind, volume }]));
        }
    };
    let mut failures = Vec::new();
    let mut found = Files { files: BTreeMap::new(), default_mode: volume.default_mode };
    for source in &volume.sources {
        let added = match source {
            ContentSource::Object { kind, name, items, optional } => {
                found.add_object(objects, *kind, name, items, *optional)
            }
            ContentSource::DownwardApi(items) => {
                for item in items {
                    failures.extend(found.add_item(facts, item).err());
                }
                Ok(())
            }
            ContentSource::ServiceAccountToken { token, path } => {
                found.add_token(facts, objects, token, path)
            }
            ContentSource::TrustBundle { bundle, optional, path } => {
                found.add_trust_bundle(facts, objects, bundle, *optional, path)
            }
        };
        failures.extend(added.err());
    }
    if failures.is_empty() {
        failures.extend(check_set(&found.files).map_err(ContentFailure::from).err());
    }
    if !failures.is_empty() {
        return Err(ContentError(failures));
    }
    let mut files = found.files;
    if facts.fs_group.is_some() {
        files.values_mut().for_each(|file| file.mode |= GROUP_READ);
    }
    Ok(Payload { files, group: facts.fs_group })
}

struct Files {
    files: BTreeMap<String, PayloadFile>,
    default_mode: u32,
}

impl Files {
    fn put(&mut self, path: &str, content: &[u8], mode: Option<i32>) -> Result<(), PathError> {
        let mode = file_mode(mode).unwrap_or(self.default_mode);
        let file = PayloadFile { content: content.to_vec(), mode, owner: None };
        self.files.insert(check(path)?, file);
        Ok(())
    }

    fn add_object(
        &mut self,
        objects: &ContentObjects,
        kind: ObjectKind,
        name: &str,
        items: &[KeyToPath],
        optional: bool,
    ) -> Result<(), ContentFailure> {
        let data = match kind {
            ObjectKind::ConfigMap => existing(objects.config_maps.get(name)).map(|object| {
                let text = object.data.iter().flatten().map(|(key, value)| (key, value.as_bytes()));
                let bytes = object.binary_data.iter().flatten();
                let bytes = bytes.map(|(key, value)| (key, value.0.as_slice()));
                bytes.chain(text).collect::<BTreeMap<&String, &[u8]>>()
            }),
            ObjectKind::Secret => existing(objects.secrets.get(name)).map(|object| {
                let bytes = object.data.iter().flatten();
                bytes.map(|(key, value)| (key, value.0.as_slice())).collect()
            }),
        };
        let data = match data {
            Ok(data) => data,
            Err(None) if optional => BTreeMap::new(),
            Err(None) => {
                return Err(ContentFailure::ObjectNotFound { kind, name: name.to_owned() });
            }
            Err(Some(text)) => return Err(ContentFailure::Unreachable(text.to_owned())),
        };
        if items.is_empty() {
            for (key, content) in data {
                self.put(key, content, None)?;
            }
            return Ok(());
        }
        for item in items {
            match data.get(&item.key) {
                Some(content) => self.put(&item.path, content, item.mode)?,
                None if optional => {}
                None => return Err(ContentFailure::KeyNotFound { kind, key: item.key.clone() }),
            }
        }
        Ok(())
    }

    fn add_item(
        &mut self,
        facts: &ContentFacts<'_>,
        item: &DownwardAPIVolumeFile,
    ) -> Result<(), ContentFailure> {
        let value = if let Some(field) = &item.field_ref {
            pod_metadata_field(facts.pod, &field.field_path)
                .ok_or_else(|| ContentFailure::UnsupportedField(field.field_path.clone()))?
        } else if let Some(resource) = &item.resource_field_ref {
            resource_field_value(facts.pod, None, resource, facts.allocatable)?.to_string()
        } else {
            String::new()
        };
        Ok(self.put(&item.path, value.as_bytes(), item.mode)?)
    }

    fn add_token(
        &mut self,
        facts: &ContentFacts<'_>,
        objects: &ContentObjects,
        token: &TokenSpec,
        path: &str,
    ) -> Result<(), ContentFailure> {
        let text = match objects.tokens.get(token) {
            Some(TokenOutcome::Issued(text)) => text,
            Some(TokenOutcome::Refused(text)) => {
                return Err(ContentFailure::TokenRefused(text.clone()));
            }
            Some(TokenOutcome::Failed(text)) => {
                return Err(ContentFailure::Unreachable(text.clone()));
            }
            None => return Err(ContentFailure::Unreachable("no token was asked for".to_owned())),
        };
        self.put_private(facts, path, text.as_bytes())
    }

    fn add_trust_bundle(
        &mut self,
        facts: &ContentFacts<'_>,
        objects: &ContentObjects,
        bundle: &TrustBundleSpec,
        optional: bool,
        path: &str,
    ) -> Result<(), ContentFailure> {
        let anchors = match existing(objects.trust_bundles.get(bundle)) {
            Ok(bundles) => merge_trust_anchors(bundles),
            Err(None) if optional => String::new(),
            Err(None) => return Err(ContentFailure::TrustBundleNotFound(bundle.clone())),
            Err(Some(text)) => return Err(ContentFailure::Unreachable(text.to_owned())),
        };
        self.put_private(facts, path, anchors.as_bytes())
    }

    /// A file for whoever runs the containers, if that is known.
    fn put_private(
        &mut self,
        facts: &ContentFacts<'_>,
        path: &str,
        content: &[u8],
    ) -> Result<(), ContentFailure> {
        let owner = common_user(facts.pod);
        // The group is let in by fsGroup, as with every other file.
        let is_private = owner.is_some() || facts.fs_group.is_some();
        let mode = if is_private { TOKEN_MODE } else { self.default_mode };
        let file = PayloadFile { content: content.to_vec(), mode, owner };
        self.files.insert(check(path)?, file);
        Ok(())
    }
}

/// `Err(None)` if it does not exist, with a text if that cannot be told.
fn existing<T>(fetched: Option<&Fetched<T>>) -> Result<&T, Option<&str>> {
    match fetched {
        Some(Fetched::Found(object)) => Ok(object),
        Some(Fetched::Failed(text)) => Err(Some(text)),
        Some(Fetched::NotFound) | None => Err(None),
    }
}

/// The user that all containers of the pod run as, as far as the spec tells; none if they differ or
/// one of them leaves it open.
fn common_user(pod: &Pod) -> Option<u32> {
    let of_pod = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.security_context.as_ref())
        .and_then(|context| context.run_as_user);
    let mut users =
        containers(pod).filter(|spec| spec.kind != ContainerKind::Ephemeral).map(|spec| {
            let context = spec.container.security_context.as_ref();
            context.and_then(|context| context.run_as_user).or(of_pod)
        });
    let first = users.next()??;
    if users.any(|user| user != Some(first)) {
        return None;
    }
    u32::try_from(first).ok()
}
