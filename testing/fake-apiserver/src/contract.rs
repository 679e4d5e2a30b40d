//! What the kubelet relies on in an API server, as checks that any can be put to: the fake one here,
//! and the real ones it stands for.

mod changes;
mod deletion;
mod others;
mod watching;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Node, Pod, ServiceAccount};
use rubelet_apiserver::{ApiError, ApiErrorKind, ApiObject, ApiServer, Delete, Objects};
use serde_json::{Value, json};

/// What the checks run with.
#[derive(Clone, Debug)]
pub struct ContractOptions {
    /// The server, as an administrator sees it, without limits.
    pub api: ApiServer,
    /// A part of all names, different in each run on the same server.
    pub run: String,
    /// How long things may take that take no time of their own.
    pub patience: Duration,
}

/// Why a check failed.
#[derive(Debug)]
pub enum CheckError {
    /// A request failed that should not have.
    Request(ApiError),
    /// The server did something else than it should have.
    Expectation(String),
}

impl From<ApiError> for CheckError {
    fn from(error: ApiError) -> Self {
        Self::Request(error)
    }
}

impl fmt::Display for CheckError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Request(error) => write!(f, "{error:?}"),
            Self::Expectation(text) => f.write_str(text),
        }
    }
}

/// One check and how it came out.
#[derive(Debug)]
pub struct Check {
    /// What the server should do.
    pub name: &'static str,
    /// Why it does not, if so.
    pub failure: Option<CheckError>,
}

/// All checks.
#[derive(Debug)]
pub struct Report {
    /// In the order they were run.
    pub checks: Vec<Check>,
}

impl Report {
    /// Those that failed.
    pub fn failures(&self) -> impl Iterator<Item = &Check> {
        self.checks.iter().filter(|check| check.failure.is_some())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Check { name, failure } in &self.checks {
            match failure {
                None => writeln!(f, "ok      {name}")?,
                Some(error) => writeln!(f, "FAILED  {name}: {error}")?,
            }
        }
        Ok(())
    }
}

type Outcome = Result<(), CheckError>;
type Running<'a> = Pin<Box<dyn Future<Output = Outcome> + Send + 'a>>;
type Named = (&'static str, for<'a> fn(&'a Scope) -> Running<'a>);

/// The place where one run does what it does.
pub(crate) struct Scope {
    api: ApiServer,
    run: String,
    namespace: String,
    node: String,
    patience: Duration,
}

/// Fails a check unless something holds.
macro_rules! ensure {
    ($holds:expr, $($text:tt)+) => {
        if !$holds {
            return Err($crate::contract::CheckError::Expectation(format!($($text)+)));
        }
    };
}
pub(crate) use ensure;

/// Runs all checks, and leaves nothing behind but a namespace.
pub async fn run(options: &ContractOptions) -> Report {
    let scope = Scope {
        api: options.api.clone(),
        run: options.run.clone(),
        namespace: format!("contract-{}", options.run),
        node: format!("contract-node-{}", options.run),
        patience: options.patience,
    };
    let mut checks = Vec::new();
    let prepared = scope.prepare().await;
    let is_prepared = prepared.is_ok();
    checks.push(Check {
        name: "a namespace, an account and a node can be made",
        failure: prepared.err(),
    });
    if is_prepared {
        let all = changes::CHECKS
            .iter()
            .chain(deletion::CHECKS)
            .chain(others::CHECKS)
            .chain(watching::CHECKS);
        for (name, check) in all {
            let outcome = tokio::time::timeout(scope.patience, check(&scope)).await;
            let failure = match outcome {
                Ok(outcome) => outcome.err(),
                Err(_) => Some(CheckError::Expectation("it takes too long".to_owned())),
            };
            checks.push(Check { name, failure });
        }
    }
    let cleaned = scope.clean_up().await;
    checks.push(Check { name: "what was made can be removed", failure: cleaned.err() });
    Report { checks }
}

impl Scope {
    async fn prepare(&self) -> Outcome {
        let namespace: Namespace = object(json!({"metadata": {"name": self.namespace}}));
        self.api.cluster::<Namespace>().create(&namespace).await?;
        let account: ServiceAccount = object(json!({"metadata": {"name": "default"}}));
        let accounts = self.api.namespaced::<ServiceAccount>(&self.namespace);
        match accounts.create(&account).await {
            // A controller may have been faster.
            Err(error) if !error.is_already_exists() => return Err(error.into()),
            _ => {}
        }
        let node: Node = object(json!({
            "metadata": {"name": self.node},
            "status": {
                "capacity": {"cpu": "4"},
                "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
                "conditions": [{"type": "Ready", "status": "False", "reason": "x"}],
            },
        }));
        let node = self.api.cluster::<Node>().create(&node).await?;
        let has_status =
            node.status.and_then(|status| status.conditions).is_some_and(|c| c.len() == 1);
        ensure!(has_status, "a new node has lost its status");
        Ok(())
    }

    async fn clean_up(&self) -> Outcome {
        let pods = self.pods();
        for pod in pods.list(&Default::default()).await?.objects {
            if let Some(name) = &pod.metadata.name {
                let now = Delete { grace_period_seconds: Some(0), ..Delete::default() };
                pods.delete(name, &now).await?;
            }
        }
        self.api.cluster::<Node>().delete(&self.node, &Delete::default()).await?;
        let namespaces = self.api.cluster::<Namespace>();
        namespaces.delete(&self.namespace, &Delete::default()).await?;
        Ok(())
    }

    pub(crate) fn pods(&self) -> Objects<Pod> {
        self.api.namespaced(&self.namespace)
    }

    pub(crate) fn config_maps(&self) -> Objects<ConfigMap> {
        self.api.namespaced(&self.namespace)
    }

    /// A pod on the run's node.
    pub(crate) fn pod(&self, name: &str) -> Pod {
        object(self.pod_json(name))
    }

    pub(crate) fn pod_json(&self, name: &str) -> Value {
        json!({
            "metadata": {"name": name, "labels": {"run": self.run}},
            "spec": {
                "nodeName": self.node,
                "containers": [{"name": "a", "image": "i:1"}, {"name": "b", "image": "i:1"}],
            },
        })
    }

    pub(crate) fn config_map(&self, name: &str, label: &str) -> ConfigMap {
        object(json!({"metadata": {"name": name, "labels": {"kind": label}}, "data": {"k": "v"}}))
    }
}

/// An object of an API type.
pub(crate) fn object<K: ApiObject>(value: Value) -> K {
    serde_json::from_value(value).expect("an object of this type")
}

pub(crate) fn to_json<K: ApiObject>(object: &K) -> Value {
    serde_json::to_value(object).expect("API objects can be written as JSON")
}

/// The request has to fail in this way.
pub(crate) fn expect_error<T>(
    outcome: Result<T, ApiError>,
    kind: ApiErrorKind,
    about: &str,
) -> Result<ApiError, CheckError> {
    match outcome {
        Ok(_) => Err(CheckError::Expectation(format!("{about} did not fail"))),
        Err(error) if error.kind == kind => Ok(error),
        Err(error) => {
            Err(CheckError::Expectation(format!("{about} should be {kind:?}: {error:?}")))
        }
    }
}

pub(crate) fn uid<K: ApiObject>(object: &K) -> String {
    object.meta().uid.clone().unwrap_or_default()
}
