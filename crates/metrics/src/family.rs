use std::cmp::Ordering;
use std::fmt;
use std::sync::{PoisonError, RwLock};

use crate::desc::Desc;
use crate::exposition::Exposition;
use crate::values::Value;

/// How many series a family has at most. Where label values come from users (exit codes, names of
/// plugins), one who makes up new ones must not make memory grow.
const MOST_SERIES: usize = 256;

/// The label value of what is counted when all series are taken.
const OTHER: &str = "other";

/// Label values in the order of their names.
type Labels<const N: usize> = [Box<str>; N];

/// A metric with `N` labels: a series for each combination of values that was counted.
///
/// Whoever counts holds a shared lock for that moment; only a new series takes it exclusively.
pub struct Family<const N: usize, V> {
    desc: &'static Desc,
    /// Sorted by labels.
    series: RwLock<Vec<(Labels<N>, V)>>,
}

impl<const N: usize, V: Value> Family<N, V> {
    /// No series yet.
    pub fn new(desc: &'static Desc) -> Self {
        debug_assert_eq!(desc.labels.len(), N, "{}", desc.name);
        Self { desc, series: RwLock::default() }
    }

    /// What it is.
    pub fn desc(&self) -> &'static Desc {
        self.desc
    }

    /// Counts with the series of these label values, which are in the order of their names.
    pub fn with<R>(&self, labels: [&str; N], count: impl FnOnce(&V) -> R) -> R {
        let series = self.series.read().unwrap_or_else(PoisonError::into_inner);
        if let Ok(at) = find(&series, &labels)
            && let Some((_, value)) = series.get(at)
        {
            return count(value);
        }
        drop(series);
        self.insert(labels, count)
    }

    fn insert<R>(&self, labels: [&str; N], count: impl FnOnce(&V) -> R) -> R {
        let mut series = self.series.write().unwrap_or_else(PoisonError::into_inner);
        let full = series.len() >= MOST_SERIES && find(&series, &labels).is_err();
        let labels = if full { [OTHER; N] } else { labels };
        let at = match find(&series, &labels) {
            Ok(at) => at,
            Err(at) => {
                let owned = labels.map(Box::from);
                series.insert(at, (owned, V::new(self.desc)));
                at
            }
        };
        count(&series[at].1)
    }

    /// Writes all series.
    pub fn collect(&self, to: &mut Exposition) {
        let mut samples = to.family(self.desc);
        for (labels, value) in self.series.read().unwrap_or_else(PoisonError::into_inner).iter() {
            let labels = labels.each_ref().map(AsRef::as_ref);
            value.write(&labels, &mut samples);
        }
    }
}

fn find<const N: usize, V>(series: &[(Labels<N>, V)], labels: &[&str; N]) -> Result<usize, usize> {
    series.binary_search_by(|(of_series, _)| {
        let pairs = of_series.iter().zip(labels);
        pairs.fold(Ordering::Equal, |so_far, (here, wanted)| {
            so_far.then_with(|| here.as_ref().cmp(wanted))
        })
    })
}

impl<const N: usize, V> fmt::Debug for Family<N, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Family").field(&self.desc.name).finish()
    }
}
