use std::sync::Arc;

use futures_util::future::BoxFuture;
use k8s_openapi::api::core::v1::Secret;
use rubelet_types::{EventObject, EventRecorder, Fetched, PodRef};
use secrecy::SecretString;
use tokio::task::spawn_blocking;

use super::credential::{CredentialOrigin, ObjectCoordinates, PullCredential};
use super::docker_config::{DockerConfig, DockerConfigFormat, parse_docker_config};
use super::keyring::Keyring;
use super::node_files::NodeCredentialFiles;
use super::providers::{CredentialProviders, ServiceAccountFacts};
use crate::service::{CredentialLookup, ImageCredentials};

/// The types of Secrets that hold credentials, the key they are beneath, and their form.
const SECRET_TYPES: [(&str, &str, DockerConfigFormat); 2] = [
    ("kubernetes.io/dockerconfigjson", ".dockerconfigjson", DockerConfigFormat::Json),
    ("kubernetes.io/dockercfg", ".dockercfg", DockerConfigFormat::Legacy),
];

/// What credentials need from the API server.
pub trait CredentialObjects: Send + Sync + 'static {
    /// A Secret that the pod names for pulling images.
    fn secret<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, Fetched<Arc<Secret>>>;

    /// What providers may be told of a service account; the text of an error says why there is
    /// nothing.
    fn service_account<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, Result<ServiceAccountFacts, String>>;

    /// A token of the pod's service account, and of no other of its name, for `audience`, bound to
    /// the pod; the text of an error says why there is none.
    fn service_account_token<'a>(
        &'a self,
        pod: &'a PodRef,
        service_account: &'a ObjectCoordinates,
        audience: &'a str,
    ) -> BoxFuture<'a, Result<SecretString, String>>;
}

/// Credentials cannot be told. The text is what users read in the container's status.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PullCredentialsError {
    /// A Secret of the right type holds no credentials.
    #[error("image pull secret {namespace}/{name}: {problem}")]
    InvalidSecret {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
        /// What is wrong with it, without what it holds.
        problem: String,
    },
}

/// All credentials that a node and its pods have for pulling images.
pub struct PullCredentials {
    objects: Option<Arc<dyn CredentialObjects>>,
    node: NodeCredentialFiles,
    providers: CredentialProviders,
    events: EventRecorder,
}

impl std::fmt::Debug for PullCredentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PullCredentials")
            .field("node", &self.node)
            .field("providers", &self.providers)
            .finish_non_exhaustive()
    }
}

impl PullCredentials {
    /// `objects` gives the pods' Secrets and service accounts; none for a kubelet that is alone.
    pub fn new(
        objects: Option<Arc<dyn CredentialObjects>>,
        node: NodeCredentialFiles,
        providers: CredentialProviders,
        events: EventRecorder,
    ) -> Self {
        Self { objects, node, providers, events }
    }

    /// The Secrets that the pod names, as far as there are such. Those that there are not are told
    /// of in an event.
    async fn pull_secrets(&self, lookup: CredentialLookup<'_>) -> Vec<Arc<Secret>> {
        let spec = lookup.pod_object.spec.as_ref();
        let named = spec.and_then(|spec| spec.image_pull_secrets.as_deref()).unwrap_or_default();
        let (mut found, mut missing) = (Vec::new(), Vec::new());
        for reference in named {
            let name = reference.name.as_str();
            // The API allows references without a name.
            if name.is_empty() {
                continue;
            }
            let answer = match &self.objects {
                Some(objects) => objects.secret(&lookup.pod.namespace, name).await,
                None => Fetched::Failed("there is no API server".to_owned()),
            };
            let problem = match answer {
                Fetched::Found(secret) => {
                    found.push(secret);
                    continue;
                }
                Fetched::NotFound => "not found".to_owned(),
                Fetched::Failed(problem) => problem,
            };
            tracing::warn!(pod = %lookup.pod, secret = name, error = problem,
                "Unable to retrieve pull secret, the image pull may not succeed");
            missing.push(name);
        }
        if !missing.is_empty() {
            let message = format!(
                "Unable to retrieve some image pull secrets ({}); attempting to pull the image may \
                 not succeed.",
                missing.join(", ")
            );
            let pod = EventObject::Pod(lookup.pod.clone());
            self.events.warning(pod, "FailedToRetrieveImagePullSecret", message);
        }
        found
    }
}

impl ImageCredentials for PullCredentials {
    async fn credentials(
        &self,
        lookup: CredentialLookup<'_>,
    ) -> Result<Vec<PullCredential>, PullCredentialsError> {
        let mut of_pod = Keyring::default();
        for secret in self.pull_secrets(lookup).await {
            let (origin, config) = read_secret(&secret)?;
            of_pod.add(&origin, config);
        }
        let mut found = of_pod.lookup(lookup.repository);

        let node = self.node.clone();
        let mut of_node = Keyring::default();
        match spawn_blocking(move || node.read()).await {
            Ok(config) => of_node.add(&CredentialOrigin::Node, config),
            Err(error) => tracing::error!(error = %error, "Reading the node's credentials failed"),
        }
        found.extend(of_node.lookup(lookup.repository));
        found.extend(self.providers.credentials(lookup, self.objects.as_deref()).await);
        Ok(found)
    }
}

fn read_secret(secret: &Secret) -> Result<(CredentialOrigin, DockerConfig), PullCredentialsError> {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let coordinates = ObjectCoordinates {
        namespace: text(&secret.metadata.namespace),
        name: text(&secret.metadata.name),
        uid: text(&secret.metadata.uid),
    };
    let is_type = |type_: &str| secret.type_.as_deref() == Some(type_);
    let held =
        SECRET_TYPES.iter().find(|(type_, ..)| is_type(type_)).and_then(|(_, key, format)| {
            let contents = &secret.data.as_ref()?.get(*key)?.0;
            (!contents.is_empty()).then_some((contents, *format))
        });
    let config = match held {
        Some((contents, format)) => parse_docker_config(contents, format).map_err(|error| {
            PullCredentialsError::InvalidSecret {
                namespace: coordinates.namespace.clone(),
                name: coordinates.name.clone(),
                problem: error.to_string(),
            }
        })?,
        None => DockerConfig::new(),
    };
    Ok((CredentialOrigin::Secret(coordinates), config))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs;
    use std::sync::Mutex;

    use futures_util::FutureExt;
    use k8s_openapi::ByteString;
    use k8s_openapi::api::core::v1::{LocalObjectReference, Pod, PodSpec};
    use rubelet_types::PodRef;

    use super::*;

    /// Secrets by name.
    struct Objects(BTreeMap<&'static str, Secret>);

    impl CredentialObjects for Objects {
        fn secret<'a>(
            &'a self,
            namespace: &'a str,
            name: &'a str,
        ) -> BoxFuture<'a, Fetched<Arc<Secret>>> {
            assert_eq!(namespace, "team");
            let found = self.0.get(name).cloned();
            async move { found.map_or(Fetched::NotFound, |found| Fetched::Found(Arc::new(found))) }
                .boxed()
        }

        fn service_account<'a>(
            &'a self,
            _: &'a str,
            name: &'a str,
        ) -> BoxFuture<'a, Result<ServiceAccountFacts, String>> {
            unreachable!("nobody asks for {name} without a provider")
        }

        fn service_account_token<'a>(
            &'a self,
            pod: &'a PodRef,
            _: &'a ObjectCoordinates,
            _: &'a str,
        ) -> BoxFuture<'a, Result<SecretString, String>> {
            unreachable!("nobody asks for a token of {pod} without a provider")
        }
    }

    fn secret(name: &str, type_: &str, key: &str, contents: &str) -> Secret {
        let mut secret = Secret {
            type_: Some(type_.to_owned()),
            data: Some([(key.to_owned(), ByteString(contents.as_bytes().to_vec()))].into()),
            ..Secret::default()
        };
        secret.metadata.name = Some(name.to_owned());
        secret.metadata.namespace = Some("team".to_owned());
        secret.metadata.uid = Some(format!("uid of {name}"));
        secret
    }

    fn entry(place: &str, username: &str) -> String {
        format!(r#"{{"{place}": {{"username": "{username}", "password": "t0ps3cret"}}}}"#)
    }

    struct Found {
        users: Result<Vec<String>, String>,
        events: Vec<String>,
    }

    async fn look_up(objects: Option<Objects>, named: &[&str]) -> Found {
        let root = tempfile::tempdir().unwrap();
        let node = format!(r#"{{"auths": {}}}"#, entry("r.io", "node"));
        fs::write(root.path().join("config.json"), node).unwrap();
        let events = Arc::new(Mutex::new(Vec::new()));
        let sink = events.clone();
        let recorder = EventRecorder::new(move |event| {
            assert!(matches!(event.object, EventObject::Pod(_)), "{event:?}");
            sink.lock().unwrap().push(format!("{} {}", event.reason, event.message));
        });
        let credentials = PullCredentials::new(
            objects.map(|objects| Arc::new(objects) as _),
            NodeCredentialFiles::new(root.path(), None),
            CredentialProviders::default(),
            recorder,
        );
        let references =
            named.iter().map(|name| LocalObjectReference { name: (*name).to_owned() }).collect();
        let lookup = CredentialLookup {
            pod: &PodRef::new("u1", "team", "web"),
            pod_object: &Pod {
                spec: Some(PodSpec { image_pull_secrets: Some(references), ..PodSpec::default() }),
                ..Pod::default()
            },
            repository: "r.io/app",
            image: "r.io/app:1",
        };
        let found = credentials.credentials(lookup).await;
        let shown = format!("{found:?}");
        assert!(!shown.contains("t0ps3cret"), "{shown}");
        let users = found.map_err(|error| error.to_string()).map(|found| {
            let user = |credential: &PullCredential| {
                let origin = match credential.origin() {
                    CredentialOrigin::Secret(secret) => secret.uid.clone(),
                    other => format!("{other:?}"),
                };
                format!("{} ({origin})", credential.to_auth_config().username)
            };
            found.iter().map(user).collect()
        });
        let events = events.lock().unwrap().clone();
        Found { users, events }
    }

    fn objects() -> Objects {
        let json = "kubernetes.io/dockerconfigjson";
        let auths = |entry: String| format!(r#"{{"auths": {entry}}}"#);
        Objects(BTreeMap::from([
            ("json", secret("json", json, ".dockerconfigjson", &auths(entry("r.io", "a")))),
            ("path", secret("path", json, ".dockerconfigjson", &auths(entry("r.io/app", "b")))),
            (
                "old",
                secret("old", "kubernetes.io/dockercfg", ".dockercfg", &entry("https://r.io", "c")),
            ),
            (
                "elsewhere",
                secret("elsewhere", json, ".dockerconfigjson", &auths(entry("q.io", "d"))),
            ),
            (
                "wrong type",
                secret("wrong type", "Opaque", ".dockerconfigjson", &auths(entry("r.io", "e"))),
            ),
            ("wrong key", secret("wrong key", json, ".dockercfg", &entry("r.io", "f"))),
            ("empty", secret("empty", json, ".dockerconfigjson", "")),
            ("broken", secret("broken", json, ".dockerconfigjson", r#"{"auths": "t0ps3cret"}"#)),
        ]))
    }

    #[tokio::test]
    async fn the_pods_secrets_come_before_the_nodes_own_files() {
        for (named, expected) in [
            (vec![], vec!["node (Node)"]),
            (vec![""], vec!["node (Node)"]),
            (vec!["json"], vec!["a (uid of json)", "node (Node)"]),
            (
                vec!["old", "json", "path", "elsewhere"],
                vec!["b (uid of path)", "c (uid of old)", "a (uid of json)", "node (Node)"],
            ),
            (vec!["wrong type", "wrong key", "empty"], vec!["node (Node)"]),
        ] {
            let found = look_up(Some(objects()), &named).await;
            assert_eq!(found.users.unwrap(), expected, "{named:?}");
            assert_eq!(found.events, [] as [String; 0], "{named:?}");
        }
    }

    #[tokio::test]
    async fn missing_secrets_are_told_of_and_broken_ones_end_the_pull() {
        let text = |names: &str| {
            format!(
                "FailedToRetrieveImagePullSecret Unable to retrieve some image pull secrets \
                 ({names}); attempting to pull the image may not succeed."
            )
        };
        let found = look_up(Some(objects()), &["none", "json", "nothing"]).await;
        assert_eq!(found.users.unwrap(), ["a (uid of json)", "node (Node)"]);
        assert_eq!(found.events, [text("none, nothing")]);
        let found = look_up(None, &["json"]).await;
        assert_eq!(found.users.unwrap(), ["node (Node)"]);
        assert_eq!(found.events, [text("json")]);
        let found = look_up(Some(objects()), &["broken"]).await;
        assert_eq!(
            found.users.unwrap_err(),
            "image pull secret team/broken: not a Docker configuration (line 1, column 21)"
        );
    }
}
