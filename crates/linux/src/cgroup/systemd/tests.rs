//! Against a small systemd of our own: it keeps units and properties, and ends jobs by signal.

use std::collections::BTreeMap;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::{Arc, Mutex as StdMutex};

use zbus::message::Header;

use super::*;

/// A result of jobs that do not end.
const NEVER: &str = "never";

type Units = BTreeMap<String, BTreeMap<String, String>>;

#[derive(Debug, Default)]
struct State {
    units: Units,
    calls: Vec<String>,
    connections: u32,
    /// How the next jobs end; `done` when empty.
    job_results: Vec<&'static str>,
    /// Hang up instead of answering this method, once.
    hang_up_at: Option<&'static str>,
}

struct FakeSystemd {
    _directory: tempfile::TempDir,
    address: String,
    state: Arc<StdMutex<State>>,
}

impl FakeSystemd {
    fn start(units: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("private");
        let listener = UnixListener::bind(&socket).unwrap();
        listener.set_nonblocking(true).unwrap();
        let listener = tokio::net::UnixListener::from_std(listener).unwrap();
        let state = Arc::new(StdMutex::new(State::default()));
        for unit in units {
            state.lock().unwrap().units.insert((*unit).to_owned(), BTreeMap::new());
        }
        let shared = Arc::clone(&state);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                shared.lock().unwrap().connections += 1;
                tokio::spawn(serve(stream.into_std().unwrap(), Arc::clone(&shared)));
            }
        });
        let address = format!("unix:path={}", PathBuf::from(&socket).display());
        Self { _directory: directory, address, state }
    }

    fn client(&self, unified: bool) -> SystemdUnits {
        SystemdUnits::at_peer(self.address.clone(), unified)
    }

    fn units(&self) -> Units {
        self.state.lock().unwrap().units.clone()
    }
}

async fn serve(stream: std::os::unix::net::UnixStream, state: Arc<StdMutex<State>>) {
    let guid = "0123456789abcdef0123456789abcdef";
    let builder = zbus::connection::Builder::unix_stream(stream).server(guid).p2p();
    let connection = builder.build().await.unwrap();
    // No await lies between the two, so no message is missed on a single thread.
    let mut messages = MessageStream::from(&connection);
    while let Some(Ok(message)) = messages.next().await {
        if message.message_type() != Type::MethodCall {
            continue;
        }
        let header = message.header();
        let method = header.member().unwrap().to_string();
        {
            let mut state = state.lock().unwrap();
            state.calls.push(method.clone());
            if state.hang_up_at == Some(method.as_str()) {
                state.hang_up_at = None;
                return;
            }
        }
        answer(&connection, &header, &message, &method, &state).await.unwrap();
    }
}

async fn answer(
    connection: &Connection,
    call: &Header<'_>,
    message: &Message,
    method: &str,
    state: &StdMutex<State>,
) -> zbus::Result<()> {
    let body = message.body();
    match method {
        "Subscribe" | "ResetFailedUnit" => connection.reply(call, &()).await,
        "Get" => connection.reply(call, &(Variant::from("255.4-1ubuntu8"),)).await,
        "StartTransientUnit" => {
            type Aux<'a> = Vec<(&'a str, Vec<(&'a str, Variant<'a>)>)>;
            let (unit, mode, properties, _aux): (&str, &str, Vec<(&str, Variant<'_>)>, Aux<'_>) =
                body.deserialize()?;
            assert_eq!(mode, "replace");
            let exists = state.lock().unwrap().units.contains_key(unit);
            if exists {
                let name = "org.freedesktop.systemd1.UnitExists";
                return connection.reply_error(call, name, &("exists",)).await;
            }
            state.lock().unwrap().units.insert(unit.to_owned(), texts(&properties));
            end_job(connection, call, unit, state).await
        }
        "StopUnit" => {
            let (unit, _mode): (&str, &str) = body.deserialize()?;
            if state.lock().unwrap().units.remove(unit).is_none() {
                let name = "org.freedesktop.systemd1.NoSuchUnit";
                return connection.reply_error(call, name, &("not loaded",)).await;
            }
            end_job(connection, call, unit, state).await
        }
        "SetUnitProperties" => {
            let (unit, runtime, properties): (&str, bool, Vec<(&str, Variant<'_>)>) =
                body.deserialize()?;
            assert!(runtime);
            state.lock().unwrap().units.get_mut(unit).unwrap().extend(texts(&properties));
            connection.reply(call, &()).await
        }
        other => panic!("unexpected call {other}"),
    }
}

fn texts(properties: &[(&str, Variant<'_>)]) -> BTreeMap<String, String> {
    properties.iter().map(|(name, value)| ((*name).to_owned(), value.to_string())).collect()
}

/// Ends an unrelated job, then this one, the signal before the reply as systemd may do it.
async fn end_job(
    connection: &Connection,
    call: &Header<'_>,
    unit: &str,
    state: &StdMutex<State>,
) -> zbus::Result<()> {
    let result = state.lock().unwrap().job_results.pop().unwrap_or("done");
    let ends = result != NEVER;
    let job = |number: u32| {
        ObjectPath::try_from(format!("/org/freedesktop/systemd1/job/{number}")).unwrap()
    };
    let jobs = [(6, "other.service", "failed"), (7, unit, result)];
    for (number, unit, result) in jobs.into_iter().take(if ends { 2 } else { 1 }) {
        let body = (number, job(number), unit, result);
        connection.emit_signal(None::<&str>, PATH, MANAGER, "JobRemoved", &body).await?;
    }
    connection.reply(call, &(job(7),)).await
}

const SLICE: &str = "kubepods-burstable-pod1_2.slice";

fn values() -> CgroupValues {
    CgroupValues {
        cpu_shares: Some(1024),
        cpu_quota: Some(25_500),
        cpu_period: Some(100_000),
        memory_limit: Some(1 << 30),
        pids_limit: Some(0),
        cpuset_cpus: Some("0-3,9".to_owned()),
        unified: BTreeMap::from([("memory.min".to_owned(), "4096".to_owned())]),
        ..CgroupValues::default()
    }
}

#[tokio::test]
async fn a_slice_is_created_with_its_values() {
    let systemd = FakeSystemd::start(&[]);
    let client = systemd.client(true);
    client.ensure_slice(SLICE, &values()).await.unwrap();
    let unit = systemd.units()[SLICE].clone();
    for (property, value) in [
        ("Wants", "[\"kubepods-burstable.slice\"]"),
        ("DefaultDependencies", "false"),
        ("MemoryAccounting", "true"),
        ("IOAccounting", "true"),
        ("CPUWeight", "uint64 39"),
        ("CPUQuotaPeriodUSec", "uint64 100000"),
        ("CPUQuotaPerSecUSec", "uint64 260000"),
        ("MemoryMax", "uint64 1073741824"),
        ("MemoryMin", "uint64 4096"),
        ("TasksMax", "uint64 1"),
        ("AllowedCPUs", "[byte 0x0f, 0x02]"),
    ] {
        assert_eq!(unit.get(property).map(String::as_str), Some(value), "{property}");
    }
    assert_eq!(client.version().await.unwrap(), 255);
}

#[tokio::test]
async fn version_one_has_other_properties() {
    let systemd = FakeSystemd::start(&[]);
    systemd.client(false).ensure_slice(SLICE, &values()).await.unwrap();
    let unit = systemd.units()[SLICE].clone();
    assert_eq!(unit["CPUShares"], "uint64 1024");
    assert_eq!(unit["MemoryLimit"], "uint64 1073741824");
    assert_eq!(unit["BlockIOAccounting"], "true");
    for absent in ["CPUWeight", "MemoryMax", "AllowedCPUs", "MemoryMin"] {
        assert!(!unit.contains_key(absent), "{absent}");
    }
}

#[tokio::test]
async fn an_existing_slice_only_gets_the_values() {
    let systemd = FakeSystemd::start(&[SLICE]);
    let client = systemd.client(true);
    client.ensure_slice(SLICE, &values()).await.unwrap();
    let unit = systemd.units()[SLICE].clone();
    assert!(!unit.contains_key("Wants"));
    assert_eq!(unit["CPUWeight"], "uint64 39");
    let less = CgroupValues { cpu_shares: Some(2), ..CgroupValues::default() };
    client.set_values(SLICE, &less).await.unwrap();
    assert_eq!(systemd.units()[SLICE]["CPUWeight"], "uint64 1");
    assert_eq!(systemd.state.lock().unwrap().connections, 1);
}

#[tokio::test]
async fn a_failed_job_is_an_error() {
    let systemd = FakeSystemd::start(&[]);
    systemd.state.lock().unwrap().job_results = vec!["failed"];
    let error = systemd.client(true).ensure_slice(SLICE, &values()).await.unwrap_err();
    assert_eq!(error.to_string(), format!("systemd's job for {SLICE} ended as \"failed\""));
}

#[tokio::test]
async fn stopping_is_idempotent() {
    let systemd = FakeSystemd::start(&[SLICE]);
    let client = systemd.client(true);
    client.stop(SLICE).await.unwrap();
    assert!(systemd.units().is_empty());
    client.stop(SLICE).await.unwrap();
    assert_eq!(systemd.state.lock().unwrap().calls.iter().filter(|c| *c == "StopUnit").count(), 2);
}

#[tokio::test]
async fn a_slice_that_stops_badly_is_reset() {
    let systemd = FakeSystemd::start(&[SLICE]);
    systemd.state.lock().unwrap().job_results = vec!["timeout"];
    systemd.client(true).stop(SLICE).await.unwrap();
    assert_eq!(systemd.state.lock().unwrap().calls.last().unwrap(), "ResetFailedUnit");
}

#[tokio::test]
async fn a_lost_connection_is_made_again() {
    let systemd = FakeSystemd::start(&[]);
    let client = systemd.client(true);
    assert_eq!(client.version().await.unwrap(), 255);
    systemd.state.lock().unwrap().hang_up_at = Some("StartTransientUnit");
    client.ensure_slice(SLICE, &values()).await.unwrap();
    assert!(systemd.units().contains_key(SLICE));
    assert_eq!(systemd.state.lock().unwrap().connections, 2);
}

#[tokio::test]
async fn a_machine_without_systemd() {
    let client = SystemdUnits::at_peer("unix:path=/no/such/socket", true);
    assert!(matches!(client.stop(SLICE).await, Err(SystemdError::Connect(_))));
}

#[tokio::test(start_paused = true)]
async fn a_job_that_never_ends_has_a_deadline() {
    let systemd = FakeSystemd::start(&[SLICE]);
    systemd.state.lock().unwrap().job_results = vec![NEVER];
    let client = systemd.client(true);
    let begin = tokio::time::Instant::now();
    let error = client.stop(SLICE).await.unwrap_err();
    assert!(matches!(&error, SystemdError::Deadline { unit } if unit == SLICE), "{error}");
    assert!(begin.elapsed() >= JOB_DEADLINE);
    // It is not trusted any more: the next call uses a new connection.
    client.stop(SLICE).await.unwrap();
    assert_eq!(systemd.state.lock().unwrap().connections, 2);
}

#[tokio::test(start_paused = true)]
async fn a_systemd_that_says_nothing_has_a_deadline() {
    let (quiet, address) = silent_peer();
    let client = SystemdUnits::at_peer(address, true);
    assert!(matches!(client.stop(SLICE).await, Err(SystemdError::Connect(_))));
    drop(quiet);
}

/// Somebody who accepts connections and says nothing.
fn silent_peer() -> ((tempfile::TempDir, UnixListener), String) {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("private");
    let listener = UnixListener::bind(&socket).unwrap();
    let address = format!("unix:path={}", socket.display());
    ((directory, listener), address)
}

#[test]
fn quotas_become_whole_percents() {
    for (quota, period, per_second, representable) in [
        (100_000, 100_000, 1_000_000, 100_000),
        (25_500, 100_000, 260_000, 26_000),
        (1_000, 100_000, 10_000, 1_000),
        (1_001, 100_000, 20_000, 2_000),
        (5_000, 10_000, 500_000, 5_000),
    ] {
        assert_eq!(quota_per_second(quota, period), per_second, "{quota} of {period}");
        let values = CgroupValues {
            cpu_quota: i64::try_from(quota).ok(),
            cpu_period: Some(period),
            ..CgroupValues::default()
        };
        assert_eq!(SystemdUnits::representable(&values).cpu_quota, Some(representable));
    }
    let unlimited = CgroupValues { cpu_quota: Some(-1), ..CgroupValues::default() };
    assert_eq!(SystemdUnits::representable(&unlimited), unlimited);
}

#[test]
fn lists_of_cpus_as_bits() {
    for (list, mask) in [
        ("0", Some(vec![1])),
        ("0-3,9", Some(vec![0x0f, 0x02])),
        ("8", Some(vec![0, 1])),
        ("63", Some(vec![0, 0, 0, 0, 0, 0, 0, 0x80])),
        ("", None),
        ("a-b", None),
    ] {
        assert_eq!(cpu_mask(list), mask, "{list}");
    }
}

#[test]
fn names_and_versions() {
    assert_eq!(parent_slice("kubepods-burstable-pod1.slice"), "kubepods-burstable.slice");
    assert_eq!(parent_slice("kubepods.slice"), "-.slice");
    for (text, number) in [("v245", 245), ("255.4-1ubuntu8", 255), ("258~rc1", 258), ("x", 0)] {
        assert_eq!(parse_version(text), number, "{text}");
    }
}
