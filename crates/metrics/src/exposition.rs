use std::fmt::{self, Write};

use crate::desc::{Desc, Kind};

/// A text format for metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Prometheus' text format, version 0.0.4: what the Go kubelet answers with.
    Prometheus,
    /// OpenMetrics 1.0.0.
    OpenMetrics,
}

impl Format {
    /// The content type of such a text.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// The text that a [`Collector`](crate::Collector) writes to.
#[derive(Debug)]
pub struct Exposition {
    format: Format,
    text: String,
    expected: Vec<&'static Desc>,
}

impl Exposition {
    pub(crate) fn new(format: Format) -> Self {
        Self { format, text: String::new(), expected: Vec::new() }
    }

    /// What may be written from now on.
    pub(crate) fn expect(&mut self, descs: Vec<&'static Desc>) {
        self.expected = descs;
    }

    pub(crate) fn finish(mut self) -> String {
        if self.format == Format::OpenMetrics {
            self.text.push_str("# EOF\n");
        }
        self.text
    }

    /// Begins a metric. All its series follow; without one it does not appear.
    pub fn family(&mut self, desc: &'static Desc) -> Samples<'_> {
        debug_assert!(self.expected.contains(&desc), "{} is not among the descs", desc.name);
        Samples { desc, format: self.format, text: &mut self.text, begun: false }
    }

    /// Writes a metric of one value, without labels.
    pub fn value(&mut self, desc: &'static Desc, value: f64) {
        self.family(desc).value(&[], value);
    }
}

/// The series of one metric.
#[derive(Debug)]
pub struct Samples<'a> {
    desc: &'static Desc,
    format: Format,
    text: &'a mut String,
    begun: bool,
}

impl Samples<'_> {
    /// Adds a series of a counter or a gauge.
    pub fn value(&mut self, labels: &[&str], value: f64) {
        debug_assert_ne!(self.desc.kind, Kind::Histogram, "{}", self.desc.name);
        self.begin();
        let number = Number { value, format: self.format };
        self.line("", labels, None, &number);
    }

    /// Adds a series of a counter or a gauge that is a whole number.
    pub fn count(&mut self, labels: &[&str], count: u64) {
        self.value(labels, whole(count));
    }

    /// Adds a series of a histogram: how many values fell between each bound of the buckets and
    /// the one before, and above the last.
    pub fn histogram(&mut self, labels: &[&str], counts: impl IntoIterator<Item = u64>, sum: f64) {
        debug_assert_eq!(self.desc.kind, Kind::Histogram, "{}", self.desc.name);
        self.begin();
        let bounds = self.desc.buckets.iter().copied().chain([f64::INFINITY]);
        let mut all = 0;
        for (bound, count) in bounds.zip(counts) {
            all += count;
            let bound = Number { value: bound, format: self.format };
            self.line("_bucket", labels, Some(&bound), &all);
        }
        let sum = Number { value: sum, format: self.format };
        self.line("_sum", labels, None, &sum);
        self.line("_count", labels, None, &all);
    }

    /// The lines above the first series.
    fn begin(&mut self) {
        if std::mem::replace(&mut self.begun, true) {
            return;
        }
        let Desc { name, help, kind, stability, .. } = self.desc;
        let help = Escaped { text: help, quotes: self.format == Format::OpenMetrics };
        let open = self.format == Format::OpenMetrics && *kind == Kind::Counter;
        let _ = match name.strip_suffix("_total") {
            // There a counter's name is that without the suffix, and what lacks it is none.
            Some(name) if open => {
                writeln!(self.text, "# HELP {name} {stability}{help}\n# TYPE {name} counter")
            }
            None if open => {
                writeln!(self.text, "# HELP {name} {stability}{help}\n# TYPE {name} unknown")
            }
            _ => writeln!(self.text, "# HELP {name} {stability}{help}\n# TYPE {name} {kind}"),
        };
    }

    fn line(
        &mut self,
        suffix: &str,
        labels: &[&str],
        bound: Option<&Number>,
        value: &dyn fmt::Display,
    ) {
        debug_assert_eq!(labels.len(), self.desc.labels.len(), "{}", self.desc.name);
        let text = &mut *self.text;
        text.push_str(self.desc.name);
        text.push_str(suffix);
        let mut separator = '{';
        for (name, value) in self.desc.labels.iter().zip(labels) {
            let value = Escaped { text: value, quotes: true };
            let _ = write!(text, "{separator}{name}=\"{value}\"");
            separator = ',';
        }
        if let Some(bound) = bound {
            let _ = write!(text, "{separator}le=\"{bound}\"");
            separator = ',';
        }
        if separator == ',' {
            text.push('}');
        }
        let _ = writeln!(text, " {value}");
    }
}

/// Text within a line, or within quotes.
struct Escaped<'a> {
    text: &'a str,
    quotes: bool,
}

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let special = |c: char| matches!(c, '\\' | '\n') || (c == '"' && self.quotes);
        let mut rest = self.text;
        while let Some(at) = rest.find(special) {
            let (before, from) = rest.split_at(at);
            f.write_str(before)?;
            f.write_str(match from.as_bytes() {
                [b'\n', ..] => "\\n",
                [b'"', ..] => "\\\"",
                _ => "\\\\",
            })?;
            rest = &from[1..];
        }
        f.write_str(rest)
    }
}

/// A number as Go writes it. The bounds of buckets are label values: a series is only the same as
/// the Go kubelet's if they are spelt the same.
struct Number {
    value: f64,
    format: Format,
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.value;
        if value.is_nan() {
            return f.write_str("NaN");
        }
        if value.is_infinite() {
            return f.write_str(if value > 0.0 { "+Inf" } else { "-Inf" });
        }
        let scientific = format!("{value:e}");
        let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
        let exponent: i32 = exponent.parse().unwrap_or(0);
        if !(-4..6).contains(&exponent) && value != 0.0 {
            let sign = if exponent < 0 { '-' } else { '+' };
            return write!(f, "{digits}e{sign}{:02}", exponent.unsigned_abs());
        }
        let whole = self.format == Format::OpenMetrics && value.fract() == 0.0;
        write!(f, "{value}{}", if whole { ".0" } else { "" })
    }
}

/// A whole number as a value. Beyond 2^53 the last digits are lost, as in every Prometheus.
#[allow(clippy::cast_precision_loss)]
pub(crate) fn whole(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_spelt_as_go_spells_them() {
        for (value, prometheus, open_metrics) in [
            (0.0, "0", "0.0"),
            (1.0, "1", "1.0"),
            (-1.0, "-1", "-1.0"),
            (0.005, "0.005", "0.005"),
            (0.0001, "0.0001", "0.0001"),
            (0.000_01, "1e-05", "1e-05"),
            (298.023_223_876_953_1, "298.0232238769531", "298.0232238769531"),
            (600_000.0, "600000", "600000.0"),
            (999_999.0, "999999", "999999.0"),
            (1_000_000.0, "1e+06", "1e+06"),
            (1_048_576.0, "1.048576e+06", "1.048576e+06"),
            (1_764_526_149.0, "1.764526149e+09", "1.764526149e+09"),
            (f64::INFINITY, "+Inf", "+Inf"),
            (f64::NEG_INFINITY, "-Inf", "-Inf"),
            (f64::NAN, "NaN", "NaN"),
        ] {
            let spell = |format| Number { value, format }.to_string();
            assert_eq!(spell(Format::Prometheus), prometheus);
            assert_eq!(spell(Format::OpenMetrics), open_metrics);
        }
    }
}
