//! KubeletConfiguration, flags, drop-ins, feature gates, validation.
