use std::fmt;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::desc::Desc;
use crate::exposition::{Exposition, Samples, whole};

/// What a series holds.
pub trait Value: Send + Sync {
    /// Nothing counted yet.
    fn new(desc: &'static Desc) -> Self;

    /// Writes what was counted as the series with these label values.
    fn write(&self, labels: &[&str], to: &mut Samples<'_>);
}

/// Counts what happened.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// One more.
    pub fn inc(&self) {
        self.add(1);
    }

    /// So many more.
    pub fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    /// How many there were.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Value for Counter {
    fn new(_: &'static Desc) -> Self {
        Self::default()
    }

    fn write(&self, labels: &[&str], to: &mut Samples<'_>) {
        to.count(labels, self.get());
    }
}

/// Tells how things stand.
#[derive(Debug, Default)]
pub struct Gauge(AtomicU64);

impl Gauge {
    /// From now on it is this.
    pub fn set(&self, value: f64) {
        self.0.store(value.to_bits(), Ordering::Relaxed);
    }

    /// From now on it is this many.
    pub fn set_count(&self, count: usize) {
        self.set(whole(count as u64));
    }

    /// This much more, or less.
    pub fn add(&self, more: f64) {
        add(&self.0, more);
    }

    /// What it is.
    pub fn get(&self) -> f64 {
        f64::from_bits(self.0.load(Ordering::Relaxed))
    }
}

impl Value for Gauge {
    fn new(_: &'static Desc) -> Self {
        Self::default()
    }

    fn write(&self, labels: &[&str], to: &mut Samples<'_>) {
        to.value(labels, self.get());
    }
}

/// Counts how often values fell into the ranges of its [`Desc`].
#[derive(Debug)]
pub struct Histogram {
    bounds: &'static [f64],
    /// One for each bound, and one for what is above all.
    counts: Box<[AtomicU64]>,
    sum: AtomicU64,
}

impl Histogram {
    /// Another value.
    pub fn observe(&self, value: f64) {
        let bucket = self.bounds.partition_point(|bound| *bound < value);
        if let Some(count) = self.counts.get(bucket) {
            count.fetch_add(1, Ordering::Relaxed);
            add(&self.sum, value);
        }
    }

    /// Another number of things.
    pub fn observe_count(&self, count: usize) {
        self.observe(whole(count as u64));
    }

    /// Another duration, in seconds.
    pub fn observe_duration(&self, duration: Duration) {
        self.observe(duration.as_secs_f64());
    }

    /// How many values there were.
    pub fn count(&self) -> u64 {
        self.counts.iter().map(|count| count.load(Ordering::Relaxed)).sum()
    }
}

impl Value for Histogram {
    fn new(desc: &'static Desc) -> Self {
        let bounds = desc.buckets;
        let counts = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Self { bounds, counts, sum: AtomicU64::new(0) }
    }

    fn write(&self, labels: &[&str], to: &mut Samples<'_>) {
        let counts = self.counts.iter().map(|count| count.load(Ordering::Relaxed));
        to.histogram(labels, counts, f64::from_bits(self.sum.load(Ordering::Relaxed)));
    }
}

/// Adds to a floating point number that others add to as well.
fn add(number: &AtomicU64, more: f64) {
    let sum = |bits| Some((f64::from_bits(bits) + more).to_bits());
    // It has no reason to fail: there always is a sum.
    let _ = number.fetch_update(Ordering::Relaxed, Ordering::Relaxed, sum);
}

/// A metric of one series, without labels: there from the start.
pub struct Metric<V> {
    desc: &'static Desc,
    value: V,
}

impl<V: Value> Metric<V> {
    /// Nothing counted yet.
    pub fn new(desc: &'static Desc) -> Self {
        Self { desc, value: V::new(desc) }
    }

    /// What it is.
    pub fn desc(&self) -> &'static Desc {
        self.desc
    }

    /// Writes it.
    pub fn collect(&self, to: &mut Exposition) {
        self.value.write(&[], &mut to.family(self.desc));
    }
}

impl<V> Deref for Metric<V> {
    type Target = V;

    fn deref(&self) -> &V {
        &self.value
    }
}

impl<V> fmt::Debug for Metric<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Metric").field(&self.desc.name).finish()
    }
}
