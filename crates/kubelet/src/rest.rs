//! What the process returns to the machine at rest.

use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};

/// How often what is free is returned: a millisecond of work for what a burst has left.
const PERIOD: Duration = Duration::from_secs(15);

/// Returns the heap that work has left, as long as it is polled.
pub(crate) async fn return_memory() {
    let mut ticks = interval(PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        rubelet_memory::return_free_heap();
    }
}
