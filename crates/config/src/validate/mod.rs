//! What a configuration must hold to. All mistakes are found at once, each with the path of its
//! field.

mod eviction;
mod names;
mod node;
mod options;
mod server;

pub(crate) use names::is_qualified_name;

use std::fmt;

use crate::{FeatureGates, FlagSpec, Gate, KubeletConfiguration, KubeletOptions};

/// One mistake.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldError {
    /// Path of the field, or `--name` of a flag that is no field.
    pub field: String,
    /// The value and what it must be.
    pub detail: String,
}

impl FieldError {
    pub(crate) fn new(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { field: field.into(), detail: detail.into() }
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "invalid configuration: {}", self.field)?;
        if let Some(flag) = FlagSpec::all().find(|flag| flag.field == Some(&*self.field)) {
            write!(f, " (--{})", flag.name)?;
        }
        write!(f, " {}", self.detail)
    }
}

/// All mistakes of a configuration; never empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ValidationErrors(pub Vec<FieldError>);

impl fmt::Display for ValidationErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("failed to validate kubelet configuration: ")?;
        for (index, error) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { "; " };
            write!(f, "{separator}{error}")?;
        }
        Ok(())
    }
}

impl std::error::Error for ValidationErrors {}

/// Collects mistakes.
#[derive(Default)]
struct Errors(Vec<FieldError>);

impl Errors {
    fn add(&mut self, field: impl Into<String>, detail: impl Into<String>) {
        self.0.push(FieldError::new(field, detail));
    }

    fn check(&mut self, good: bool, field: &str, detail: impl FnOnce() -> String) {
        if !good {
            self.add(field, detail());
        }
    }

    fn in_range<T: PartialOrd + fmt::Display>(&mut self, field: &str, value: T, low: T, high: T) {
        self.check(value >= low && value <= high, field, || {
            format!("{value} must be between {low} and {high}, inclusive")
        });
    }

    fn not_negative<T: PartialOrd + Default + fmt::Display>(&mut self, field: &str, value: T) {
        self.check(value >= T::default(), field, || {
            format!("{value} must not be a negative number")
        });
    }

    fn positive<T: PartialOrd + Default + fmt::Display>(&mut self, field: &str, value: T) {
        self.check(value > T::default(), field, || format!("{value} must be greater than 0"));
    }

    fn one_of(&mut self, field: &str, value: &str, allowed: &[&str]) {
        self.check(allowed.contains(&value), field, || {
            format!("{value:?} must be one of: {}", quoted(allowed))
        });
    }
}

fn quoted(words: &[&str]) -> String {
    words.iter().map(|word| format!("{word:?}")).collect::<Vec<_>>().join(", ")
}

/// Everything that is wrong.
pub(crate) fn validate(
    config: &KubeletConfiguration,
    options: &KubeletOptions,
    gates: &FeatureGates,
) -> Vec<FieldError> {
    let mut errors = Errors::default();
    server::check(config, gates, &mut errors);
    node::check(config, gates, &mut errors);
    eviction::check(config, gates, &mut errors);
    options::check(options, &mut errors);
    errors.0
}

/// Everything that is valid, but not what its author expects.
pub(crate) fn warnings_of_effective(
    config: &KubeletConfiguration,
    options: &KubeletOptions,
    gates: &FeatureGates,
) -> Vec<String> {
    let mut warnings = Vec::new();
    for server in config.cluster_dns.iter().filter(|server| !names::is_ip(server)) {
        warnings.push(format!("clusterDNS: {server:?} is no IP address and is ignored"));
    }
    for suite in config.tls_cipher_suites.iter().filter(|suite| server::is_insecure_suite(suite)) {
        warnings.push(format!("tlsCipherSuites: {suite} is insecure"));
    }
    if !config.qos_reserved.is_empty() && !gates.enabled(Gate::QOSReserved) {
        warnings.push("qosReserved has no effect without feature gate QOSReserved".to_owned());
    }
    options::warn(options, &mut warnings);
    warnings
}

/// Checks what depends on the machine's cgroup version, which only the caller knows.
pub fn check_cgroup_version(
    config: &KubeletConfiguration,
    cgroup_v2: bool,
) -> Result<(), ValidationErrors> {
    let mut errors = Errors::default();
    if !cgroup_v2 {
        errors.check(!config.fail_cgroup_v1, "failCgroupV1", || {
            "is true and this machine uses cgroup v1; move to cgroup v2, or set it to false to \
             run on cgroup v1 for now"
                .to_owned()
        });
        errors.check(config.single_process_oom_kill != Some(false), "singleProcessOOMKill", || {
            "must not be false on cgroup v1".to_owned()
        });
    }
    if errors.0.is_empty() { Ok(()) } else { Err(ValidationErrors(errors.0)) }
}

#[cfg(test)]
mod tests;
