use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;

/// The wall clock, handed to whoever needs it, so that simulations can own time.
///
/// The brain crates never see it: they get a [`Timestamp`] as an argument.
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> Timestamp + Send + Sync>);

impl Clock {
    /// The clock of the machine.
    pub fn system() -> Self {
        #[allow(clippy::disallowed_methods)] // This is the one place that may read it.
        Self(Arc::new(Timestamp::now))
    }

    /// A clock that answers with `now`; simulations derive it from paused time.
    pub fn from_fn(now: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        Self(Arc::new(now))
    }

    /// The present wall-clock time.
    pub fn now(&self) -> Timestamp {
        (self.0)()
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Clock")
    }
}
