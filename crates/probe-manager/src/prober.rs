use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, ExecAction, Pod, Probe};
use rubelet_container_http::{
    ContainerClient, ErroredAs, HttpTarget, ProbeOutcome, Purpose, resolve_port,
};
use rubelet_types::{ContainerId, ProbeKind, expand, find_container, format_go_duration, pod_ref};
use tokio::time::timeout;

use crate::probe_state::ProbeSettings;

/// How much of a command's output is kept, in bytes.
const OUTPUT_CAP: usize = 10 * 1024;

/// How long the runtime gets, beyond the probe's time-out, to end the command and say so. What
/// takes longer is a time-out all the same, and the call is dropped.
const RUNTIME_GRACE: Duration = Duration::from_secs(2);

/// What a command left behind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExecOutput {
    /// Its exit code; 0 is success.
    pub exit_code: i32,
    /// Its standard output and then its standard error.
    pub output: Vec<u8>,
}

/// A command gave no exit code.
#[derive(Debug, thiserror::Error)]
pub enum ExecError {
    /// It took longer than it may. The probe has failed.
    #[error("command timed out")]
    TimedOut,
    /// It could not be run. The probe has errored: nothing is known of the container.
    #[error(transparent)]
    Failed(Box<dyn Error + Send + Sync>),
}

/// Runs commands in containers.
pub trait ExecPort: Send + Sync + 'static {
    /// Runs `command`, without a shell, in `container`, and ends it after `timeout`. Dropping the
    /// future gives the command up.
    fn exec(
        &self,
        container: &ContainerId,
        command: &[String],
        timeout: Duration,
    ) -> impl Future<Output = Result<ExecOutput, ExecError>> + Send;
}

/// One attempt to make.
#[derive(Clone, Debug)]
pub struct ProbeJob {
    /// The pod.
    pub pod: Arc<Pod>,
    /// Name of the container.
    pub container: String,
    /// Which of its probes.
    pub kind: ProbeKind,
    /// The instance to probe.
    pub container_id: ContainerId,
    /// The pod's primary address, which probes go to that name no host; empty if it has none.
    pub pod_ip: String,
}

/// Makes one attempt of a probe.
pub trait ProbePort: Send + Sync + 'static {
    /// Makes the attempt, within the probe's time-out. Dropping the future gives it up.
    fn attempt(&self, job: &ProbeJob) -> impl Future<Output = ProbeOutcome> + Send;
}

/// Probes real containers: commands by an [`ExecPort`], everything else over the network.
#[derive(Debug)]
pub struct Prober<E> {
    exec: E,
    client: ContainerClient,
}

impl<E: ExecPort> Prober<E> {
    /// A prober that runs commands by `exec` and makes its requests by `client`.
    pub fn new(exec: E, client: ContainerClient) -> Self {
        Self { exec, client }
    }

    async fn exec(
        &self,
        action: &ExecAction,
        container: &Container,
        id: &ContainerId,
        time: Duration,
    ) -> ProbeOutcome {
        let command = static_command(action, container);
        let run = self.exec.exec(id, &command, time);
        match timeout(time + RUNTIME_GRACE, run).await.unwrap_or(Err(ExecError::TimedOut)) {
            Ok(ExecOutput { exit_code, mut output }) => {
                output.truncate(OUTPUT_CAP);
                let output = String::from_utf8_lossy(&output).into_owned();
                if exit_code == 0 {
                    ProbeOutcome::Success(output)
                } else {
                    ProbeOutcome::Failure(output)
                }
            }
            Err(ExecError::TimedOut) => ProbeOutcome::Failure(format!(
                "command timed out: {:?} timed out after {}",
                command.join(" "),
                format_go_duration(time)
            )),
            Err(ExecError::Failed(error)) => errored(error),
        }
    }
}

impl<E: ExecPort> ProbePort for Prober<E> {
    async fn attempt(&self, job: &ProbeJob) -> ProbeOutcome {
        let spec = find_container(&job.pod, &job.container);
        let container = spec.as_ref().map(|spec| spec.container.as_ref());
        let Some((container, probe)) = container.and_then(|it| Some((it, probe_of(it, job.kind)?)))
        else {
            return errored(format!("no {} probe in the spec", job.kind));
        };
        let time = ProbeSettings::new(probe).timeout;
        if let Some(action) = &probe.exec {
            self.exec(action, container, &job.container_id, time).await
        } else if let Some(action) = &probe.http_get {
            match HttpTarget::new(action, container, &job.pod_ip, Purpose::Probe) {
                Ok(target) => self.client.http_probe(&target, time).await,
                Err(error) => errored(error),
            }
        } else if let Some(action) = &probe.tcp_socket {
            let host = action.host.as_deref().filter(|host| !host.is_empty());
            match resolve_port(&action.port, container) {
                Ok(port) => self.client.tcp_probe(host.unwrap_or(&job.pod_ip), port, time).await,
                Err(error) => errored(error),
            }
        } else if let Some(action) = &probe.grpc {
            let service = action.service.as_deref().unwrap_or_default();
            match u16::try_from(action.port) {
                Ok(port) => self.client.grpc_probe(&job.pod_ip, port, service, time).await,
                Err(_) => errored(format!("invalid port number: {}", action.port)),
            }
        } else {
            let pod = pod_ref(&job.pod);
            errored(format!("missing probe handler for {pod}:{}", job.container))
        }
    }
}

fn errored(message: impl ToString) -> ProbeOutcome {
    ProbeOutcome::Error { state: ErroredAs::Unknown, message: message.to_string() }
}

/// The probe `kind` of `container`.
pub(crate) fn probe_of(container: &Container, kind: ProbeKind) -> Option<&Probe> {
    match kind {
        ProbeKind::Liveness => container.liveness_probe.as_ref(),
        ProbeKind::Readiness => container.readiness_probe.as_ref(),
        ProbeKind::Startup => container.startup_probe.as_ref(),
    }
}

/// The attempt needs the pod's address.
pub(crate) fn needs_pod_ip(probe: &Probe) -> bool {
    let unnamed = |host: &Option<String>| host.as_deref().unwrap_or_default().is_empty();
    match (&probe.exec, &probe.http_get, &probe.tcp_socket) {
        (Some(_), _, _) => false,
        (None, Some(action), _) => unnamed(&action.host),
        (None, None, Some(action)) => unnamed(&action.host),
        (None, None, None) => probe.grpc.is_some(),
    }
}

/// The command with references to the container's literal environment replaced. Variables from
/// elsewhere (`valueFrom`) are empty here: a probe sees only what stands in the spec.
fn static_command(action: &ExecAction, container: &Container) -> Vec<String> {
    let value_of = |name: &str| {
        let variable = container.env.iter().flatten().rev().find(|variable| variable.name == name);
        variable.map(|variable| variable.value.clone().unwrap_or_default())
    };
    action.command.iter().flatten().map(|word| expand(word, value_of)).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use serde_json::{Value, json};

    use super::*;

    /// A runtime of one container, which runs three commands.
    #[derive(Debug, Default)]
    struct Runtime {
        ran: Mutex<Vec<Vec<String>>>,
    }

    impl ExecPort for Runtime {
        async fn exec(
            &self,
            container: &ContainerId,
            command: &[String],
            _timeout: Duration,
        ) -> Result<ExecOutput, ExecError> {
            self.ran.lock().unwrap().push(command.to_vec());
            if container.as_str() != "id" {
                return Err(ExecError::Failed("rpc error: code = NotFound desc = gone".into()));
            }
            match command[0].as_str() {
                "true" => Ok(ExecOutput { exit_code: 0, output: b"yes".to_vec() }),
                "yes" => Ok(ExecOutput { exit_code: 1, output: vec![b'y'; 20_000] }),
                "sleep" => Err(ExecError::TimedOut),
                _ => std::future::pending().await,
            }
        }
    }

    fn job(container: Value) -> ProbeJob {
        let pod = json!({
            "metadata": {"name": "p", "namespace": "n", "uid": "u"},
            "spec": {"containers": [container]},
        });
        ProbeJob {
            pod: Arc::new(serde_json::from_value(pod).unwrap()),
            container: "c".to_owned(),
            kind: ProbeKind::Liveness,
            container_id: "id".into(),
            pod_ip: "127.0.0.1".to_owned(),
        }
    }

    fn exec(command: &[&str]) -> ProbeJob {
        job(json!({"name": "c", "livenessProbe": {"exec": {"command": command}}}))
    }

    fn prober() -> Prober<Runtime> {
        Prober::new(Runtime::default(), ContainerClient::new("1.36"))
    }

    #[tokio::test(start_paused = true)]
    async fn commands_succeed_fail_time_out_and_error() {
        let prober = prober();
        let success = ProbeOutcome::Success("yes".to_owned());
        assert_eq!(prober.attempt(&exec(&["true"])).await, success);
        let capped = ProbeOutcome::Failure("y".repeat(10 * 1024));
        assert_eq!(prober.attempt(&exec(&["yes"])).await, capped);
        let timed_out = |command: &str| {
            ProbeOutcome::Failure(format!("command timed out: {command:?} timed out after 1s"))
        };
        assert_eq!(prober.attempt(&exec(&["sleep", "10"])).await, timed_out("sleep 10"));
        let before = tokio::time::Instant::now();
        assert_eq!(prober.attempt(&exec(&["hang"])).await, timed_out("hang"));
        assert_eq!(before.elapsed(), Duration::from_secs(3));
        let gone = ProbeJob { container_id: "other".into(), ..exec(&["true"]) };
        assert_eq!(prober.attempt(&gone).await, errored("rpc error: code = NotFound desc = gone"));
    }

    #[tokio::test]
    async fn commands_see_the_literal_environment_only() {
        let prober = prober();
        let job = job(json!({
            "name": "c",
            "env": [
                {"name": "A", "value": "1"},
                {"name": "A", "value": "2"},
                {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            ],
            "livenessProbe": {"exec": {"command": ["true", "$(A)-$(B)-$(C)-$$(A)"]}},
        }));
        prober.attempt(&job).await;
        assert_eq!(*prober.exec.ran.lock().unwrap(), [["true", "2--$(C)-$(A)"]]);
    }

    #[tokio::test]
    async fn actions_that_cannot_be_are_errors() {
        for (probe, expected) in [
            (json!({}), "missing probe handler for p_n(u):c"),
            (
                json!({"httpGet": {"port": "http"}}),
                "strconv.Atoi: parsing \"http\": invalid syntax",
            ),
            (json!({"tcpSocket": {"port": 0}}), "invalid port number: 0"),
            (json!({"grpc": {"port": 70000}}), "invalid port number: 70000"),
        ] {
            let outcome =
                prober().attempt(&job(json!({"name": "c", "livenessProbe": probe}))).await;
            assert_eq!(outcome, errored(expected));
        }
        let absent = job(json!({"name": "c"}));
        assert_eq!(prober().attempt(&absent).await, errored("no Liveness probe in the spec"));
    }

    #[tokio::test]
    async fn the_network_is_probed_at_the_pods_address() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let job = job(json!({
            "name": "c",
            "ports": [{"name": "web", "containerPort": port}],
            "livenessProbe": {"tcpSocket": {"port": "web"}},
        }));
        assert_eq!(prober().attempt(&job).await, ProbeOutcome::Success(String::new()));
    }
}
