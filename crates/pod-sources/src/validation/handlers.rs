use k8s_openapi::api::core::v1::{
    Container, ExecAction, HTTPGetAction, LifecycleHandler, Probe, SleepAction, TCPSocketAction,
};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::error::{Errors, FieldPath};
use super::spec::PodContext;
use super::{syntax, text};

/// What a probe and a lifecycle hook have in common.
#[derive(Default)]
struct Handler<'a> {
    exec: Option<&'a ExecAction>,
    http_get: Option<&'a HTTPGetAction>,
    tcp_socket: Option<&'a TCPSocketAction>,
    grpc_port: Option<i32>,
    sleep: Option<&'a SleepAction>,
}

impl<'a> Handler<'a> {
    fn of_probe(probe: &'a Probe) -> Self {
        Self {
            exec: probe.exec.as_ref(),
            http_get: probe.http_get.as_ref(),
            tcp_socket: probe.tcp_socket.as_ref(),
            grpc_port: probe.grpc.as_ref().map(|grpc| grpc.port),
            ..Self::default()
        }
    }

    fn of_hook(hook: &'a LifecycleHandler) -> Self {
        Self {
            exec: hook.exec.as_ref(),
            http_get: hook.http_get.as_ref(),
            tcp_socket: hook.tcp_socket.as_ref(),
            sleep: hook.sleep.as_ref(),
            ..Self::default()
        }
    }
}

#[derive(Clone, Copy, PartialEq)]
enum ProbeRole {
    Liveness,
    Readiness,
    Startup,
}

pub(super) fn validate_lifecycle_and_probes(
    container: &Container,
    pod: &PodContext<'_>,
    at: &FieldPath,
    errors: &mut Errors,
) {
    if let Some(lifecycle) = &container.lifecycle {
        let at = at.child("lifecycle");
        for (name, hook) in [("postStart", &lifecycle.post_start), ("preStop", &lifecycle.pre_stop)]
        {
            if let Some(hook) = hook {
                validate_handler(&Handler::of_hook(hook), pod, &at.child(name), errors);
            }
        }
        if let Some(signal) = &lifecycle.stop_signal {
            validate_stop_signal(signal, pod.os, &at.child("stopSignal"), errors);
        }
    }
    for (name, probe, role) in [
        ("livenessProbe", &container.liveness_probe, ProbeRole::Liveness),
        ("readinessProbe", &container.readiness_probe, ProbeRole::Readiness),
        ("startupProbe", &container.startup_probe, ProbeRole::Startup),
    ] {
        if let Some(probe) = probe {
            validate_probe(probe, role, pod, &at.child(name), errors);
        }
    }
}

fn validate_probe(
    probe: &Probe,
    role: ProbeRole,
    pod: &PodContext<'_>,
    at: &FieldPath,
    errors: &mut Errors,
) {
    validate_handler(&Handler::of_probe(probe), pod, at, errors);
    for (name, value) in [
        ("initialDelaySeconds", probe.initial_delay_seconds),
        ("timeoutSeconds", probe.timeout_seconds),
        ("periodSeconds", probe.period_seconds),
        ("successThreshold", probe.success_threshold),
        ("failureThreshold", probe.failure_threshold),
    ] {
        if let Some(value) = value.filter(|value| *value < 0) {
            errors.invalid(&at.child(name), &value, "must be greater than or equal to 0");
        }
    }
    let success = probe.success_threshold.unwrap_or_default();
    if role != ProbeRole::Readiness && success != 1 {
        errors.invalid(&at.child("successThreshold"), &success, "must be 1");
    }
    if let Some(seconds) = probe.termination_grace_period_seconds {
        let at = at.child("terminationGracePeriodSeconds");
        if seconds <= 0 {
            errors.invalid(&at, &seconds, "must be greater than 0");
        }
        if role == ProbeRole::Readiness {
            errors.invalid(&at, &seconds, "must not be set for readinessProbes");
        }
    }
}

fn validate_handler(
    handler: &Handler<'_>,
    pod: &PodContext<'_>,
    at: &FieldPath,
    errors: &mut Errors,
) {
    let present = [
        ("exec", handler.exec.is_some()),
        ("httpGet", handler.http_get.is_some()),
        ("tcpSocket", handler.tcp_socket.is_some()),
        ("grpc", handler.grpc_port.is_some()),
        ("sleep", handler.sleep.is_some()),
    ];
    let mut present = present.into_iter().filter(|(_, is_set)| *is_set).map(|(name, _)| name);
    let Some(kind) = present.next() else {
        return errors.required(at, "must specify a handler type");
    };
    for more in present {
        errors.forbidden(&at.child(more), "may not specify more than 1 handler type");
    }
    let at = at.child(kind);
    match kind {
        "exec" => {
            let command = handler.exec.and_then(|exec| exec.command.as_ref());
            if command.is_none_or(Vec::is_empty) {
                errors.required(&at.child("command"), "");
            }
        }
        "httpGet" => {
            if let Some(action) = handler.http_get {
                validate_http_get(action, &at, errors);
            }
        }
        "tcpSocket" => {
            if let Some(action) = handler.tcp_socket {
                validate_port(&action.port, &at.child("port"), errors);
            }
        }
        "grpc" => {
            let port = handler.grpc_port.unwrap_or_default();
            errors.invalid_each(&at.child("port"), &port, syntax::port_number(port));
        }
        _ => {
            // A negative grace period is a fault of its own.
            let seconds = handler.sleep.map(|sleep| sleep.seconds).unwrap_or_default();
            if let Some(grace) = pod.grace_seconds
                && !(0..=grace).contains(&seconds)
            {
                let detail = format!(
                    "must be non-negative and less than terminationGracePeriodSeconds ({grace})"
                );
                errors.invalid(&at, &seconds, &detail);
            }
        }
    }
}

fn validate_http_get(action: &HTTPGetAction, at: &FieldPath, errors: &mut Errors) {
    if text(&action.path).is_empty() {
        errors.required(&at.child("path"), "");
    }
    validate_port(&action.port, &at.child("port"), errors);
    let scheme = text(&action.scheme);
    if !["HTTP", "HTTPS"].contains(&scheme) {
        errors.not_supported(&at.child("scheme"), scheme, &["HTTP", "HTTPS"]);
    }
    for header in action.http_headers.iter().flatten() {
        let at = at.child("httpHeaders");
        errors.invalid_each(&at, &header.name, syntax::header_name(&header.name));
    }
}

fn validate_port(port: &IntOrString, at: &FieldPath, errors: &mut Errors) {
    match port {
        IntOrString::Int(number) => {
            errors.invalid_each(at, number, syntax::port_number(*number));
        }
        IntOrString::String(name) => errors.invalid_each(at, name, syntax::port_name(name)),
    }
}

const STOP_SIGNALS: [&str; 34] = [
    "SIGABRT",
    "SIGALRM",
    "SIGBUS",
    "SIGCHLD",
    "SIGCLD",
    "SIGCONT",
    "SIGFPE",
    "SIGHUP",
    "SIGILL",
    "SIGINT",
    "SIGIO",
    "SIGIOT",
    "SIGKILL",
    "SIGPIPE",
    "SIGPOLL",
    "SIGPROF",
    "SIGPWR",
    "SIGQUIT",
    "SIGSEGV",
    "SIGSTKFLT",
    "SIGSTOP",
    "SIGSYS",
    "SIGTERM",
    "SIGTRAP",
    "SIGTSTP",
    "SIGTTIN",
    "SIGTTOU",
    "SIGURG",
    "SIGUSR1",
    "SIGUSR2",
    "SIGVTALRM",
    "SIGWINCH",
    "SIGXCPU",
    "SIGXFSZ",
];

/// `SIGRTMIN` to `SIGRTMIN+15`, `SIGRTMAX-14` to `SIGRTMAX`.
fn is_realtime_signal(signal: &str) -> bool {
    let within = |rest: &str, sign: char, limit: u8| {
        rest.is_empty()
            || rest.strip_prefix(sign).and_then(|digits| digits.parse::<u8>().ok()).is_some_and(
                |number| (1..=limit).contains(&number) && rest == format!("{sign}{number}"),
            )
    };
    signal.strip_prefix("SIGRTMIN").is_some_and(|rest| within(rest, '+', 15))
        || signal.strip_prefix("SIGRTMAX").is_some_and(|rest| within(rest, '-', 14))
}

fn validate_stop_signal(signal: &str, os: &str, at: &FieldPath, errors: &mut Errors) {
    match os {
        "" => errors.forbidden(at, "may not be set for containers with empty `spec.os.name`"),
        "windows" if !["SIGKILL", "SIGTERM"].contains(&signal) => {
            errors.not_supported(at, signal, &["SIGKILL", "SIGTERM"]);
        }
        "windows" => {}
        _ if STOP_SIGNALS.contains(&signal) || is_realtime_signal(signal) => {}
        _ => errors.not_supported(at, signal, &STOP_SIGNALS),
    }
}
