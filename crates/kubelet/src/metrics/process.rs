//! The process, as every Prometheus client tells of it.

use rubelet_linux::{Host, ProcessUsage};
use rubelet_metrics::{Collector, Desc, Exposition, Stability};

const CPU: Desc =
    Desc::counter("process_cpu_seconds_total", "Time on a CPU, in user and kernel mode.")
        .of(Stability::None);
const START: Desc =
    Desc::gauge("process_start_time_seconds", "When the process was started, in Unix time.")
        .of(Stability::None);
const VIRTUAL: Desc =
    Desc::gauge("process_virtual_memory_bytes", "Size of the address space.").of(Stability::None);
const MAX_VIRTUAL: Desc =
    Desc::gauge("process_virtual_memory_max_bytes", "How large the address space may become.")
        .of(Stability::None);
const RESIDENT: Desc = Desc::gauge("process_resident_memory_bytes", "How much of it is in memory.")
    .of(Stability::None);
const FILES: Desc = Desc::gauge("process_open_fds", "Open file descriptors.").of(Stability::None);
const MAX_FILES: Desc =
    Desc::gauge("process_max_fds", "How many file descriptors may be open.").of(Stability::None);

/// Asks the kernel whenever it is asked itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProcessMetrics;

impl Collector for ProcessMetrics {
    fn descs(&self) -> Vec<&'static Desc> {
        vec![&CPU, &START, &VIRTUAL, &MAX_VIRTUAL, &RESIDENT, &FILES, &MAX_FILES]
    }

    fn collect(&self, to: &mut Exposition) {
        let usage = match ProcessUsage::read_own() {
            Ok(usage) => usage,
            Err(error) => {
                tracing::debug!(%error, "The kernel does not tell what this process uses");
                return;
            }
        };
        to.value(&CPU, usage.cpu.as_secs_f64());
        if let Some(started) = started(&usage) {
            to.value(&START, started);
        }
        to.family(&VIRTUAL).count(&[], usage.virtual_bytes);
        // That is how no limit reads elsewhere.
        let unlimited = u64::MAX;
        to.family(&MAX_VIRTUAL).count(&[], usage.max_virtual_bytes.unwrap_or(unlimited));
        to.family(&RESIDENT).count(&[], usage.resident_bytes);
        to.family(&FILES).count(&[], usage.open_files);
        to.family(&MAX_FILES).count(&[], usage.max_open_files.unwrap_or(unlimited));
    }
}

/// When the process was started, in seconds of Unix time. Of a process that goes on it is the same
/// each time, to the hundredth of a second: the kernel's own word on when it was booted.
fn started(usage: &ProcessUsage) -> Option<f64> {
    let boot = match Host::system().boot_time_seconds() {
        Ok(seconds) => seconds,
        Err(error) => {
            tracing::debug!(%error, "The kernel does not tell when it was booted");
            return None;
        }
    };
    // Seconds since 1970 are far below 2^53.
    #[allow(clippy::cast_precision_loss)]
    let boot = boot as f64;
    Some(boot + usage.started_after_boot.as_secs_f64())
}
