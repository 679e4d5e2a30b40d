//! Counters, gauges and histograms, and the text in which Prometheus reads them.
//!
//! What: a [`Desc`] says once what a metric is called, of what kind it is and which labels it has.
//! Values live with whoever counts: a crate has a small struct of them, which is a [`Collector`],
//! and the wiring puts all into one [`Registry`]. What can be seen by looking (how many pods there
//! are) is not counted but looked at when somebody asks: a collector may write what it likes.
//!
//! Guarantees: counting takes no exclusive lock and, but for the first time of a combination of
//! label values, allocates nothing. A [`Family`] holds a bounded number of series, whatever label
//! values come. Nothing appears under a name, a kind or labels that [`Registry::descs`] does not
//! tell: collecting asserts it where assertions are on.
//!
//! Not here: which metrics there are, and who may read them.

mod desc;
mod exposition;
mod family;
mod negotiation;
mod registry;
mod values;

pub use desc::{DEFAULT_BUCKETS, Desc, Kind, Stability};
pub use exposition::{Exposition, Format, Samples};
pub use family::Family;
pub use negotiation::negotiate;
pub use registry::{Collector, Registry};
pub use values::{Counter, Gauge, Histogram, Metric, Value};

/// Makes a struct of metrics a [`Collector`]: `collector!(PlegMetrics { relists, discarded })`
/// names its fields, each a [`Metric`] or a [`Family`].
#[macro_export]
macro_rules! collector {
    ($name:ty { $($field:ident),* $(,)? }) => {
        impl $crate::Collector for $name {
            fn descs(&self) -> Vec<&'static $crate::Desc> {
                vec![$(self.$field.desc()),*]
            }

            fn collect(&self, to: &mut $crate::Exposition) {
                $(self.$field.collect(to);)*
            }
        }
    };
}
