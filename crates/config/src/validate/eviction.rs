//! Eviction, image collection, node shutdown.

use std::collections::BTreeMap;

use rubelet_types::Quantity;

use super::Errors;
use crate::{FeatureGates, Gate, GoDuration, KubeletConfiguration};

/// What can be measured to decide about evictions.
const SIGNALS: [&str; 9] = [
    "memory.available",
    "allocatableMemory.available",
    "nodefs.available",
    "nodefs.inodesFree",
    "imagefs.available",
    "imagefs.inodesFree",
    "containerfs.available",
    "containerfs.inodesFree",
    "pid.available",
];

pub(super) fn check(config: &KubeletConfiguration, gates: &FeatureGates, errors: &mut Errors) {
    thresholds("evictionHard", &config.eviction_hard, errors);
    thresholds("evictionSoft", &config.eviction_soft, errors);
    signals("evictionSoftGracePeriod", &config.eviction_soft_grace_period, errors);
    for (signal, text) in &config.eviction_soft_grace_period {
        match text.parse::<GoDuration>() {
            Ok(period) => errors.check(!period.is_negative(), "evictionSoftGracePeriod", || {
                format!("{text:?} for {signal} must not be negative")
            }),
            Err(error) => errors.add("evictionSoftGracePeriod", format!("for {signal}: {error}")),
        }
    }
    for signal in config.eviction_soft.keys() {
        errors.check(
            config.eviction_soft_grace_period.contains_key(signal),
            "evictionSoftGracePeriod",
            || format!("must be specified for the soft eviction threshold {signal}"),
        );
    }
    signals("evictionMinimumReclaim", &config.eviction_minimum_reclaim, errors);
    for (signal, text) in &config.eviction_minimum_reclaim {
        errors.check(is_amount(text, true), "evictionMinimumReclaim", || {
            format!("{text:?} for {signal} must be a quantity or a percentage, not negative")
        });
    }
    let period = config.eviction_pressure_transition_period;
    errors.check(!period.is_negative(), "evictionPressureTransitionPeriod", || {
        format!("{period} must not be negative")
    });
    image_collection(config, errors);
    shutdown(config, gates, errors);
}

fn signals(field: &str, map: &BTreeMap<String, String>, errors: &mut Errors) {
    for signal in map.keys() {
        errors.check(SIGNALS.contains(&signal.as_str()), field, || {
            format!("has an unknown eviction signal {signal:?}")
        });
    }
}

fn thresholds(field: &str, map: &BTreeMap<String, String>, errors: &mut Errors) {
    signals(field, map, errors);
    for (signal, text) in map {
        // 0% and 100% turn a signal off; an absolute threshold of zero is a mistake.
        errors.check(is_amount(text, false), field, || {
            format!("{text:?} for {signal} must be a positive quantity or a percentage up to 100%")
        });
    }
}

fn is_amount(text: &str, zero_allowed: bool) -> bool {
    if let Some(percentage) = text.strip_suffix('%') {
        return percentage.parse::<f32>().is_ok_and(|number| (0.0..=100.0).contains(&number));
    }
    match text.parse::<Quantity>() {
        Ok(quantity) if zero_allowed => quantity >= Quantity::ZERO,
        Ok(quantity) => quantity > Quantity::ZERO,
        Err(_) => false,
    }
}

fn image_collection(config: &KubeletConfiguration, errors: &mut Errors) {
    let (low, high) =
        (config.image_gc_low_threshold_percent, config.image_gc_high_threshold_percent);
    errors.in_range("imageGCHighThresholdPercent", high, 0, 100);
    errors.in_range("imageGCLowThresholdPercent", low, 0, 100);
    errors.check(low < high, "imageGCLowThresholdPercent", || {
        format!(
            "{low} must be less than imageGCHighThresholdPercent (--image-gc-high-threshold) {high}"
        )
    });
    let (least, most) = (config.image_minimum_gc_age, config.image_maximum_gc_age);
    errors.check(!least.is_negative(), "imageMinimumGCAge", || {
        format!("{least} must not be negative")
    });
    errors
        .check(!most.is_negative(), "imageMaximumGCAge", || format!("{most} must not be negative"));
    errors.check(most.as_nanos() <= 0 || most > least, "imageMaximumGCAge", || {
        format!("{most} must be greater than imageMinimumGCAge {least}")
    });
}

fn shutdown(config: &KubeletConfiguration, gates: &FeatureGates, errors: &mut Errors) {
    let total = config.shutdown_grace_period;
    let critical = config.shutdown_grace_period_critical_pods;
    let by_priority = &config.shutdown_grace_period_by_pod_priority;
    let second = GoDuration::from_secs(1);
    for (field, period) in
        [("shutdownGracePeriod", total), ("shutdownGracePeriodCriticalPods", critical)]
    {
        errors.check(period.is_zero() || period >= second, field, || {
            format!("{period} must be either zero or otherwise >= 1 sec")
        });
        errors.check(period.is_zero() || gates.enabled(Gate::GracefulNodeShutdown), field, || {
            "requires feature gate GracefulNodeShutdown".to_owned()
        });
    }
    errors.check(critical <= total, "shutdownGracePeriodCriticalPods", || {
        format!("{critical} must be <= shutdownGracePeriod {total}")
    });
    if by_priority.is_empty() {
        return;
    }
    let field = "shutdownGracePeriodByPodPriority";
    errors.check(total.is_zero() && critical.is_zero(), field, || {
        "cannot be specified together with shutdownGracePeriod".to_owned()
    });
    errors.check(gates.enabled(Gate::GracefulNodeShutdownBasedOnPodPriority), field, || {
        "requires feature gate GracefulNodeShutdownBasedOnPodPriority".to_owned()
    });
    for group in by_priority {
        let seconds = group.shutdown_grace_period_seconds;
        errors.check(seconds >= 0, field, || format!("{seconds} must not be a negative number"));
    }
}
