use std::time::Duration;

/// Renders a duration as Go's `time.Duration` does (`1m30s`, `1.5s`, `10ms`), which is the form
/// that configuration, messages and events carry.
pub fn format_go_duration(duration: Duration) -> String {
    let nanos = duration.as_nanos();
    if nanos == 0 {
        return "0s".to_owned();
    }
    if nanos < 1_000 {
        return format!("{nanos}ns");
    }
    if nanos < 1_000_000 {
        return format!("{}µs", decimal(nanos, 1_000));
    }
    if nanos < 1_000_000_000 {
        return format!("{}ms", decimal(nanos, 1_000_000));
    }
    let total_seconds = duration.as_secs();
    let (hours, minutes) = (total_seconds / 3600, total_seconds / 60 % 60);
    let seconds = decimal(nanos % 60_000_000_000, 1_000_000_000);
    if hours > 0 {
        format!("{hours}h{minutes}m{seconds}s")
    } else if minutes > 0 {
        format!("{minutes}m{seconds}s")
    } else {
        format!("{seconds}s")
    }
}

fn decimal(value: u128, unit: u128) -> String {
    let (whole, rest) = (value / unit, value % unit);
    if rest == 0 {
        return whole.to_string();
    }
    let width = unit.ilog10() as usize;
    let fraction = format!("{rest:0width$}");
    format!("{whole}.{}", fraction.trim_end_matches('0'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renders_like_go() {
        for (nanos, expected) in [
            (0, "0s"),
            (15, "15ns"),
            (1_500, "1.5µs"),
            (10_000_000, "10ms"),
            (1_500_000_000, "1.5s"),
            (90_000_000_000, "1m30s"),
            (300_000_000_000, "5m0s"),
            (3_600_000_000_000, "1h0m0s"),
            (3_661_000_000_001, "1h1m1.000000001s"),
        ] {
            assert_eq!(format_go_duration(Duration::from_nanos(nanos)), expected);
        }
    }
}
