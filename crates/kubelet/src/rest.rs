//! What the process returns to the machine at rest.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tokio::time::{MissedTickBehavior, interval};

/// How often it is looked whether there is something to return.
const PERIOD: Duration = Duration::from_secs(15);
/// Who has used more CPU in a period than this has worked: a hundredth of a core. With 110 pods that
/// only run it is a tenth of that.
const WORK: Duration = Duration::from_millis(150);

/// Returns memory that work has left, as long as it is polled: free heap each period, and code once
/// after each time of work.
pub(crate) async fn return_memory() {
    let mut ticks = interval(PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut before = cpu_time();
    // The start was work.
    let mut has_worked = true;
    ticks.tick().await;
    loop {
        ticks.tick().await;
        rubelet_memory::return_free_heap();
        let now = cpu_time();
        let works = now.saturating_sub(std::mem::replace(&mut before, now)) > WORK;
        if has_worked
            && !works
            && let Err(error) = rubelet_memory::return_unused_code()
        {
            tracing::debug!(error = %error, "Could not return code");
        }
        has_worked = works;
    }
}

/// What all threads of the process have used so far.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::try_from(time).unwrap_or_default()
}
