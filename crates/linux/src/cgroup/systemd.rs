//! systemd as the owner of the cgroup tree: slices are transient units, asked for over D-Bus.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::StreamExt as _;
use rubelet_node_resources::{CgroupValues, DEFAULT_CFS_PERIOD_MICROS, cpu_weight_from_shares};
use tokio::sync::Mutex;
use zbus::message::Type;

use zbus::{Connection, DynamicType, MatchRule, Message, MessageStream, ObjectPath, Variant};

const SERVICE: &str = "org.freedesktop.systemd1";
const PATH: &str = "/org/freedesktop/systemd1";
const MANAGER: &str = "org.freedesktop.systemd1.Manager";
const PROPERTIES: &str = "org.freedesktop.DBus.Properties";
const PRIVATE_SOCKET: &str = "unix:path=/run/systemd/private";
/// How long systemd may take for a job. It usually takes milliseconds.
const JOB_DEADLINE: Duration = Duration::from_secs(30);
/// systemd keeps CPU quotas in whole percents of a CPU: multiples of this per second.
const QUOTA_STEP_MICROS: u64 = 10_000;

/// systemd did not do what it was asked for.
#[derive(Debug, thiserror::Error)]
pub enum SystemdError {
    /// It cannot be reached.
    #[error("cannot connect to systemd")]
    Connect(#[source] Box<zbus::Error>),
    /// It refused.
    #[error("systemd refused {method} for {unit}")]
    Refused {
        /// The method of its D-Bus interface.
        method: &'static str,
        /// The unit.
        unit: String,
        /// Its answer.
        #[source]
        source: Box<zbus::Error>,
    },
    /// It tried in vain.
    #[error("systemd's job for {unit} ended as {result:?}")]
    Job {
        /// The unit.
        unit: String,
        /// `failed`, `canceled`, `timeout`, `dependency`, `skipped`.
        result: String,
    },
    /// It took too long.
    #[error("systemd did not finish its job for {unit} in time")]
    Deadline {
        /// The unit.
        unit: String,
    },
    /// A list of CPUs that is none.
    #[error("{0:?} is not a list of CPUs")]
    CpuList(String),
}

type Properties = Vec<(&'static str, Variant<'static>)>;

/// A client of systemd. It connects when it is first used and again when the connection was lost.
#[derive(Debug)]
pub struct SystemdUnits {
    address: Option<String>,
    unified: bool,
    session: Mutex<Option<Session>>,
}

#[derive(Clone, Debug)]
struct Session {
    connection: Connection,
    /// systemd is the peer itself, not a name on a bus.
    is_peer: bool,
    version: u32,
}

impl SystemdUnits {
    /// A client of the machine's systemd. `unified`: the node uses cgroup v2, where some
    /// properties have other names.
    pub fn new(unified: bool) -> Self {
        Self { address: None, unified, session: Mutex::new(None) }
    }

    /// A client of a systemd that listens itself at this D-Bus address.
    pub fn at_peer(address: impl Into<String>, unified: bool) -> Self {
        Self { address: Some(address.into()), unified, session: Mutex::new(None) }
    }

    /// What systemd can express of `values`: it rounds a CPU quota up to whole percents. Whoever
    /// writes the cgroup's files too must write the same, or the two take turns.
    pub fn representable(values: &CgroupValues) -> CgroupValues {
        let mut values = values.clone();
        if let Some(quota) = values.cpu_quota.and_then(|quota| u64::try_from(quota).ok())
            && quota > 0
        {
            let period = effective_period(&values);
            let per_second = quota_per_second(quota, period);
            values.cpu_quota =
                i64::try_from(u128::from(per_second) * u128::from(period) / 1_000_000).ok();
        }
        values
    }

    /// Makes sure that the slice exists, as a transient unit without default dependencies, and has
    /// these values.
    ///
    /// # Errors
    /// When systemd cannot be reached, refuses or takes too long.
    pub async fn ensure_slice(
        &self,
        slice: &str,
        values: &CgroupValues,
    ) -> Result<(), SystemdError> {
        let io_accounting = if self.unified { "IOAccounting" } else { "BlockIOAccounting" };
        let properties: Properties = vec![
            ("Description", Variant::from(format!("Kubernetes cgroup {slice}"))),
            ("Wants", Variant::from(vec![parent_slice(slice)])),
            ("DefaultDependencies", Variant::from(false)),
            ("MemoryAccounting", Variant::from(true)),
            ("CPUAccounting", Variant::from(true)),
            (io_accounting, Variant::from(true)),
            ("TasksAccounting", Variant::from(true)),
        ];
        let auxiliary: Vec<(&str, Properties)> = Vec::new();
        let body = (slice, "replace", properties, auxiliary);
        match self.run_job(slice, "StartTransientUnit", &body).await {
            Err(SystemdError::Refused { source, .. }) if is_error(&source, "UnitExists") => {}
            result => result?,
        }
        self.set_values(slice, values).await
    }

    /// Gives an existing slice these values, until it is stopped. Values that systemd has no
    /// property for are left to the cgroup's files.
    ///
    /// # Errors
    /// When systemd cannot be reached or refuses.
    pub async fn set_values(&self, slice: &str, values: &CgroupValues) -> Result<(), SystemdError> {
        let session = self.session().await?;
        let properties = resource_properties(values, self.unified, session.version)?;
        if properties.is_empty() {
            return Ok(());
        }
        self.call(slice, "SetUnitProperties", &(slice, true, properties)).await.map(|_| ())
    }

    /// Stops the slice; one that is not there is stopped already.
    ///
    /// # Errors
    /// When systemd cannot be reached, refuses or takes too long.
    pub async fn stop(&self, slice: &str) -> Result<(), SystemdError> {
        match self.run_job(slice, "StopUnit", &(slice, "replace")).await {
            Err(SystemdError::Refused { source, .. }) if is_error(&source, "NoSuchUnit") => Ok(()),
            // The slice may be gone all the same; whoever removes its cgroup finds out.
            Err(SystemdError::Job { unit, result }) => {
                tracing::warn!(unit, result, "slice not stopped cleanly");
                self.reset_failed(slice).await;
                Ok(())
            }
            result => result,
        }
    }

    /// systemd's version number.
    ///
    /// # Errors
    /// When systemd cannot be reached.
    pub async fn version(&self) -> Result<u32, SystemdError> {
        Ok(self.session().await?.version)
    }

    /// Lets systemd forget a failed unit.
    async fn reset_failed(&self, unit: &str) {
        if let Err(error) = self.call(unit, "ResetFailedUnit", &(unit,)).await {
            tracing::debug!(unit, %error, "failed unit not reset");
        }
    }

    /// Calls a method that answers with a job, and waits for the job's end.
    async fn run_job<B>(
        &self,
        unit: &str,
        method: &'static str,
        body: &B,
    ) -> Result<(), SystemdError>
    where
        B: serde::Serialize + DynamicType,
    {
        let refused = |source| SystemdError::Refused {
            method,
            unit: unit.to_owned(),
            source: Box::new(source),
        };
        let mut attempts_left = 2;
        loop {
            attempts_left -= 1;
            let session = self.session().await?;
            // Before the call, so that no end of a job is missed.
            let outcome = tokio::time::timeout(JOB_DEADLINE, async {
                let mut ended = session.ended_jobs().await?;
                let reply = session.call_manager(method, body).await?;
                let body = reply.body();
                let job: ObjectPath<'_> = body.deserialize()?;
                await_job(&mut ended, &job).await
            })
            .await;
            match outcome {
                Ok(Ok(result)) if result == "done" => return Ok(()),
                Ok(Ok(result)) => {
                    return Err(SystemdError::Job { unit: unit.to_owned(), result });
                }
                Ok(Err(_)) if session.connection.is_closed() && attempts_left > 0 => {
                    self.forget_session().await;
                }
                Ok(Err(source)) => return Err(refused(source)),
                Err(_elapsed) => {
                    // Perhaps its signals do not arrive any more.
                    self.forget_session().await;
                    return Err(SystemdError::Deadline { unit: unit.to_owned() });
                }
            }
        }
    }

    async fn call<B>(
        &self,
        unit: &str,
        method: &'static str,
        body: &B,
    ) -> Result<Message, SystemdError>
    where
        B: serde::Serialize + DynamicType,
    {
        let mut attempts_left = 2;
        loop {
            attempts_left -= 1;
            let session = self.session().await?;
            let call = session.call_manager(method, body);
            match tokio::time::timeout(JOB_DEADLINE, call).await {
                Ok(Ok(reply)) => return Ok(reply),
                Ok(Err(_)) if session.connection.is_closed() && attempts_left > 0 => {
                    self.forget_session().await;
                }
                Ok(Err(source)) => {
                    return Err(SystemdError::Refused {
                        method,
                        unit: unit.to_owned(),
                        source: Box::new(source),
                    });
                }
                Err(_elapsed) => {
                    self.forget_session().await;
                    return Err(SystemdError::Deadline { unit: unit.to_owned() });
                }
            }
        }
    }

    async fn session(&self) -> Result<Session, SystemdError> {
        let mut session = self.session.lock().await;
        if let Some(session) = session.as_ref().filter(|s| !s.connection.is_closed()) {
            return Ok(session.clone());
        }
        let connecting = async {
            match &self.address {
                Some(address) => Session::with_peer(address).await,
                None => match Session::on_bus().await {
                    Ok(session) => Ok(session),
                    // A machine without a bus: systemd listens itself, to root alone.
                    Err(error) => Session::with_peer(PRIVATE_SOCKET).await.map_err(|_| error),
                },
            }
        };
        let fresh = tokio::time::timeout(JOB_DEADLINE, connecting)
            .await
            .unwrap_or_else(|_elapsed| Err(io_error(std::io::ErrorKind::TimedOut)))
            .map_err(|error| SystemdError::Connect(Box::new(error)))?;
        Ok(session.insert(fresh).clone())
    }

    async fn forget_session(&self) {
        self.session.lock().await.take();
    }
}

impl Session {
    async fn on_bus() -> zbus::Result<Self> {
        Self::begin(Connection::system().await?, false).await
    }

    async fn with_peer(address: &str) -> zbus::Result<Self> {
        let connection = zbus::connection::Builder::address(address).p2p().build().await?;
        Self::begin(connection, true).await
    }

    async fn begin(connection: Connection, is_peer: bool) -> zbus::Result<Self> {
        let mut session = Self { connection, is_peer, version: 0 };
        // systemd tells about jobs only when somebody wants to know.
        session.call_manager("Subscribe", &()).await?;
        let reply = session.call(PROPERTIES, "Get", &(MANAGER, "Version")).await?;
        let body = reply.body();
        let version: Variant<'_> = body.deserialize()?;
        session.version = match version {
            Variant::Str(text) => parse_version(&text),
            _ => 0,
        };
        Ok(session)
    }

    async fn call_manager<B>(&self, method: &'static str, body: &B) -> zbus::Result<Message>
    where
        B: serde::Serialize + DynamicType,
    {
        self.call(MANAGER, method, body).await
    }

    async fn call<B>(
        &self,
        interface: &'static str,
        method: &'static str,
        body: &B,
    ) -> zbus::Result<Message>
    where
        B: serde::Serialize + DynamicType,
    {
        let destination = (!self.is_peer).then_some(SERVICE);
        self.connection.call_method(destination, PATH, Some(interface), method, body).await
    }

    async fn ended_jobs(&self) -> zbus::Result<MessageStream> {
        let mut rule = MatchRule::builder()
            .msg_type(Type::Signal)
            .interface(MANAGER)
            .member("JobRemoved")
            .path(PATH);
        if !self.is_peer {
            rule = rule.sender(SERVICE);
        }
        MessageStream::for_match_rule(rule.build()?, &self.connection, None).await
    }
}

/// Waits until systemd says that `job` has ended, and how.
async fn await_job(ended: &mut MessageStream, job: &ObjectPath<'_>) -> zbus::Result<String> {
    while let Some(message) = ended.next().await {
        let message = message?;
        let body = message.body();
        let (_id, ended_job, _unit, result): (u32, ObjectPath<'_>, &str, &str) =
            body.deserialize()?;
        if ended_job == *job {
            return Ok(result.to_owned());
        }
    }
    Err(io_error(std::io::ErrorKind::UnexpectedEof))
}

fn io_error(kind: std::io::ErrorKind) -> zbus::Error {
    std::io::Error::from(kind).into()
}

fn is_error(error: &zbus::Error, name: &str) -> bool {
    matches!(error, zbus::Error::MethodError(found, _, _)
        if found.as_str().strip_prefix(SERVICE).and_then(|rest| rest.strip_prefix('.')) == Some(name))
}

/// The number in `255.4-1`, `v245`.
fn parse_version(text: &str) -> u32 {
    let digits = text.trim_start_matches(|c: char| !c.is_ascii_digit());
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    digits[..end].parse().unwrap_or(0)
}

/// `a-b-c.slice` lies in `a-b.slice`, `a.slice` in the root slice.
fn parent_slice(slice: &str) -> String {
    match slice.rsplit_once('-') {
        Some((parent, _)) if !parent.is_empty() => format!("{parent}.slice"),
        _ => "-.slice".to_owned(),
    }
}

/// The properties for those values that systemd has properties for.
fn resource_properties(
    values: &CgroupValues,
    unified: bool,
    version: u32,
) -> Result<Properties, SystemdError> {
    let mut properties: BTreeMap<&'static str, Variant<'static>> = BTreeMap::new();
    let infinity_or = |limit: i64| u64::try_from(limit).unwrap_or(u64::MAX);
    if let Some(shares) = values.cpu_shares {
        if unified {
            properties.insert("CPUWeight", Variant::from(cpu_weight_from_shares(shares)));
        } else {
            properties.insert("CPUShares", Variant::from(shares));
        }
    }
    let period = values.cpu_period.filter(|period| *period != 0);
    let quota = values.cpu_quota.filter(|quota| *quota != 0);
    if let Some(period) = period
        && version >= 242
    {
        properties.insert("CPUQuotaPeriodUSec", Variant::from(period));
    }
    if period.is_some() || quota.is_some() {
        let per_second = match quota.and_then(|quota| u64::try_from(quota).ok()) {
            Some(quota) => quota_per_second(quota, effective_period(values)),
            None => u64::MAX,
        };
        properties.insert("CPUQuotaPerSecUSec", Variant::from(per_second));
    }
    if let Some(limit) = values.memory_limit.filter(|limit| *limit != 0) {
        let name = if unified { "MemoryMax" } else { "MemoryLimit" };
        properties.insert(name, Variant::from(infinity_or(limit)));
    }
    if let Some(limit) = values.pids_limit {
        properties.insert("TasksMax", Variant::from(infinity_or(limit).max(1)));
    }
    if let Some(cpus) = &values.cpuset_cpus
        && unified
        && version >= 244
    {
        let mask = cpu_mask(cpus).ok_or_else(|| SystemdError::CpuList(cpus.clone()))?;
        properties.insert("AllowedCPUs", Variant::from(mask));
    }
    if unified {
        for (file, name) in [
            ("memory.min", "MemoryMin"),
            ("memory.low", "MemoryLow"),
            ("memory.high", "MemoryHigh"),
        ] {
            if let Some(value) = values.unified.get(file) {
                let bytes = value.trim().parse().unwrap_or(u64::MAX);
                properties.insert(name, Variant::from(bytes));
            }
        }
    }
    Ok(properties.into_iter().collect())
}

fn effective_period(values: &CgroupValues) -> u64 {
    values.cpu_period.filter(|period| *period != 0).unwrap_or(DEFAULT_CFS_PERIOD_MICROS)
}

/// CPU time per second, in microseconds, rounded up to what systemd can express.
fn quota_per_second(quota: u64, period: u64) -> u64 {
    let exact = u128::from(quota) * 1_000_000 / u128::from(period.max(1));
    let steps = exact.div_ceil(u128::from(QUOTA_STEP_MICROS));
    u64::try_from(steps * u128::from(QUOTA_STEP_MICROS)).unwrap_or(u64::MAX)
}

/// The bits of a list such as `0-3,8`, lowest CPU first.
fn cpu_mask(list: &str) -> Option<Vec<u8>> {
    let mut mask = Vec::new();
    for range in list.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u16, u16) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        for cpu in first..=last {
            let byte = usize::from(cpu / 8);
            if mask.len() <= byte {
                mask.resize(byte + 1, 0);
            }
            mask[byte] |= 1 << (cpu % 8);
        }
    }
    Some(mask)
}

#[cfg(test)]
mod tests;
