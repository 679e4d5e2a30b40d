use std::time::Duration;

use rubelet_config::KubeletConfiguration;

/// How long whoever reads an object waits for its watch to begin. Longer than upstream's second: to
/// wait costs nothing, and each failure is an event that frightens people.
const FIRST_SYNC: Duration = Duration::from_secs(5);
/// A watch of which nobody reads the object is closed after so many sync periods, but not before a
/// minute.
const IDLE_PERIODS: u32 = 5;
const LEAST_IDLE: Duration = Duration::from_secs(60);
/// How long an object is taken to be as it was read, unless the node says otherwise.
const DEFAULT_TTL: Duration = Duration::from_secs(60);

/// How changes of objects are noticed (`configMapAndSecretChangeDetectionStrategy`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeDetection {
    /// Each object is watched while some pod refers to it.
    Watch,
    /// What was read is kept for a time.
    Cache,
    /// It is read each time.
    Get,
}

/// How objects are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectStoreSettings {
    /// How changes are noticed.
    pub strategy: ChangeDetection,
    /// How long a read waits for the watch to begin.
    pub first_sync: Duration,
    /// A watch is closed if nobody has read its object for so long.
    pub max_idle: Duration,
    /// How long an object of the cache is taken to be as it was read.
    pub ttl: Duration,
}

impl ObjectStoreSettings {
    /// As configured.
    pub fn from_configuration(config: &KubeletConfiguration) -> Self {
        let strategy = match config.config_map_and_secret_change_detection_strategy.as_str() {
            "Get" => ChangeDetection::Get,
            "Cache" => ChangeDetection::Cache,
            // The configuration has been validated, and this is the default.
            _ => ChangeDetection::Watch,
        };
        let period = config.sync_frequency.as_duration();
        Self {
            strategy,
            first_sync: FIRST_SYNC,
            max_idle: period.saturating_mul(IDLE_PERIODS).max(LEAST_IDLE),
            ttl: DEFAULT_TTL,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_is_read() {
        let mut config = KubeletConfiguration::default();
        let settings = ObjectStoreSettings::from_configuration(&config);
        assert_eq!(settings.strategy, ChangeDetection::Watch);
        assert_eq!(settings.max_idle, Duration::from_secs(300));
        for (text, strategy) in [("Get", ChangeDetection::Get), ("Cache", ChangeDetection::Cache)] {
            config.config_map_and_secret_change_detection_strategy = text.to_owned();
            assert_eq!(ObjectStoreSettings::from_configuration(&config).strategy, strategy);
        }
    }
}
