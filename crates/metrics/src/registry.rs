use std::fmt;
use std::sync::Arc;

use crate::desc::Desc;
use crate::exposition::{Exposition, Format};

/// A group of metrics.
pub trait Collector: Send + Sync {
    /// All metrics that [`Self::collect`] may ever write.
    fn descs(&self) -> Vec<&'static Desc>;

    /// Writes what was counted, or looks and writes what there is. Must not block.
    fn collect(&self, to: &mut Exposition);
}

/// All metrics of an endpoint.
#[derive(Clone, Default)]
pub struct Registry(Vec<Arc<dyn Collector>>);

impl Registry {
    /// No metrics.
    pub fn new() -> Self {
        Self::default()
    }

    /// The same and those of `collector`.
    #[must_use]
    pub fn with(mut self, collector: Arc<dyn Collector>) -> Self {
        self.0.push(collector);
        self
    }

    /// What metrics there are, in the order in which they appear.
    pub fn descs(&self) -> Vec<&'static Desc> {
        self.0.iter().flat_map(|collector| collector.descs()).collect()
    }

    /// All metrics that have a value, as text.
    pub fn expose(&self, format: Format) -> String {
        let mut exposition = Exposition::new(format);
        for collector in &self.0 {
            exposition.expect(collector.descs());
            collector.collect(&mut exposition);
        }
        exposition.finish()
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registry").field("collectors", &self.0.len()).finish()
    }
}
