//! Addresses, certificates, who may ask, rates, log, traces.

use super::{Errors, names};
use crate::{FeatureGates, Gate, KubeletConfiguration, OutputRouting};
use rubelet_types::Quantity;

/// The release before this one, for which hidden metrics may be shown.
const PREVIOUS_MINOR: &str = "1.35";

/// Cipher suites by their Go names; the second list may be used and should not.
const GOOD_SUITES: &[&str] = &[
    "TLS_AES_128_GCM_SHA256",
    "TLS_AES_256_GCM_SHA384",
    "TLS_CHACHA20_POLY1305_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
];
const INSECURE_SUITES: &[&str] = &[
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256",
    "TLS_ECDHE_ECDSA_WITH_RC4_128_SHA",
    "TLS_ECDHE_RSA_WITH_3DES_EDE_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256",
    "TLS_ECDHE_RSA_WITH_RC4_128_SHA",
    "TLS_RSA_WITH_3DES_EDE_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA256",
    "TLS_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_RSA_WITH_AES_256_CBC_SHA",
    "TLS_RSA_WITH_AES_256_GCM_SHA384",
    "TLS_RSA_WITH_RC4_128_SHA",
];

pub(super) fn is_insecure_suite(name: &str) -> bool {
    INSECURE_SUITES.contains(&name)
}

pub(super) fn check(config: &KubeletConfiguration, gates: &FeatureGates, errors: &mut Errors) {
    addresses(config, errors);
    tls(config, gates, errors);
    rates_and_periods(config, errors);
    logging(config, gates, errors);
    tracing(config, errors);
    errors.one_of("authorization.mode", &config.authorization.mode, &["AlwaysAllow", "Webhook"]);
    errors.check(
        !config.enable_system_log_query || config.enable_system_log_handler,
        "enableSystemLogQuery",
        || "requires enableSystemLogHandler".to_owned(),
    );
    let version = &config.show_hidden_metrics_for_version;
    errors.check(
        version.is_empty() || version == PREVIOUS_MINOR,
        "showHiddenMetricsForVersion",
        || format!("{version:?} must be empty or {PREVIOUS_MINOR:?}, the previous minor version"),
    );
}

fn addresses(config: &KubeletConfiguration, errors: &mut Errors) {
    for (field, address) in
        [("address", &config.address), ("healthzBindAddress", &config.healthz_bind_address)]
    {
        errors.check(names::is_ip(address), field, || {
            format!("{address:?} must be a valid IP address")
        });
    }
    errors.in_range("port", config.port, 1, 65535);
    errors.in_range("readOnlyPort", config.read_only_port, 0, 65535);
    errors.in_range("healthzPort", config.healthz_port, 0, 65535);
    errors.check(!config.container_runtime_endpoint.is_empty(), "containerRuntimeEndpoint", || {
        "must be specified".to_owned()
    });
    let pod_cidr = &config.pod_cidr;
    errors.check(
        pod_cidr.is_empty() || pod_cidr.split(',').all(|part| names::is_cidr(part.trim())),
        "podCIDR",
        || format!("{pod_cidr:?} must be one or two IP ranges such as \"10.0.0.0/24\""),
    );
}

fn tls(config: &KubeletConfiguration, gates: &FeatureGates, errors: &mut Errors) {
    for suite in &config.tls_cipher_suites {
        errors.check(
            GOOD_SUITES.contains(&suite.as_str()) || is_insecure_suite(suite),
            "tlsCipherSuites",
            || format!("{suite:?} is not supported or does not exist"),
        );
    }
    let versions = ["", "VersionTLS10", "VersionTLS11", "VersionTLS12", "VersionTLS13"];
    errors.one_of("tlsMinVersion", &config.tls_min_version, &versions);
    for (index, group) in config.tls_curve_preferences.iter().enumerate() {
        errors.in_range("tlsCurvePreferences", *group, 1, 65535);
        errors.check(
            !config.tls_curve_preferences[..index].contains(group),
            "tlsCurvePreferences",
            || format!("{group} must not be listed twice"),
        );
    }
    errors.check(
        config.tls_cert_file.is_empty() == config.tls_private_key_file.is_empty(),
        if config.tls_cert_file.is_empty() { "tlsCertFile" } else { "tlsPrivateKeyFile" },
        || "must be set, because tlsCertFile and tlsPrivateKeyFile go together".to_owned(),
    );
    errors.check(
        !config.server_tls_bootstrap || gates.enabled(Gate::RotateKubeletServerCertificate),
        "serverTLSBootstrap",
        || "true requires feature gate RotateKubeletServerCertificate".to_owned(),
    );
}

fn rates_and_periods(config: &KubeletConfiguration, errors: &mut Errors) {
    errors.not_negative("eventBurst", config.event_burst);
    errors.not_negative("eventRecordQPS", config.event_record_qps);
    errors.not_negative("kubeAPIBurst", config.kube_api_burst);
    errors.not_negative("kubeAPIQPS", config.kube_api_qps);
    errors.not_negative("registryBurst", config.registry_burst);
    errors.not_negative("registryPullQPS", config.registry_pull_qps);
    for (field, period) in [
        ("syncFrequency", config.sync_frequency),
        ("fileCheckFrequency", config.file_check_frequency),
        ("httpCheckFrequency", config.http_check_frequency),
        ("nodeStatusUpdateFrequency", config.node_status_update_frequency),
        ("nodeStatusReportFrequency", config.node_status_report_frequency),
        ("runtimeRequestTimeout", config.runtime_request_timeout),
        ("cpuManagerReconcilePeriod", config.cpu_manager_reconcile_period),
    ] {
        errors.check(period.as_nanos() > 0, field, || format!("{period} must be greater than 0"));
    }
    for (field, time) in [
        ("authentication.webhook.cacheTTL", config.authentication.webhook.cache_ttl),
        (
            "authorization.webhook.cacheAuthorizedTTL",
            config.authorization.webhook.cache_authorized_ttl,
        ),
        (
            "authorization.webhook.cacheUnauthorizedTTL",
            config.authorization.webhook.cache_unauthorized_ttl,
        ),
    ] {
        errors.check(!time.is_negative(), field, || format!("{time} must not be negative"));
    }
    errors.positive("nodeLeaseDurationSeconds", config.node_lease_duration_seconds);
}

fn logging(config: &KubeletConfiguration, gates: &FeatureGates, errors: &mut Errors) {
    const MOST: u32 = i32::MAX.unsigned_abs();
    let logging = &config.logging;
    errors.one_of("logging.format", &logging.format, &["text", "json"]);
    errors.check(logging.flush_frequency.as_nanos() > 0, "logging.flushFrequency", || {
        format!("{} must be greater than 0", logging.flush_frequency)
    });
    errors.in_range("logging.verbosity", logging.verbosity, 0, MOST);
    errors.check(logging.vmodule.is_empty() || logging.format == "text", "logging.vmodule", || {
        "is only supported for text log format".to_owned()
    });
    for (index, item) in logging.vmodule.iter().enumerate() {
        let field = format!("logging.vmodule[{index}]");
        errors.check(!item.file_pattern.is_empty(), &field, || {
            "file pattern must not be empty".to_owned()
        });
        errors.check(!item.file_pattern.contains(['=', ',']), &field, || {
            format!("file pattern {:?} must not contain an equal sign or comma", item.file_pattern)
        });
        errors.in_range(&field, item.verbosity, 0, MOST);
    }
    for (name, routing) in [("text", &logging.options.text), ("json", &logging.options.json)] {
        output_routing(name, routing, gates.enabled(Gate::LoggingAlphaOptions), errors);
    }
}

fn output_routing(format: &str, routing: &OutputRouting, allowed: bool, errors: &mut Errors) {
    let disabled = || "requires feature gate LoggingAlphaOptions".to_owned();
    errors.check(
        allowed || !routing.split_stream,
        &format!("logging.options.{format}.splitStream"),
        disabled,
    );
    let field = format!("logging.options.{format}.infoBufferSize");
    match routing.info_buffer_size.0.parse::<Quantity>() {
        Ok(size) => errors.check(allowed || size.value() == 0, &field, disabled),
        Err(error) => errors.add(field, error.to_string()),
    }
}

fn tracing(config: &KubeletConfiguration, errors: &mut Errors) {
    let Some(tracing) = &config.tracing else { return };
    if let Some(rate) = tracing.sampling_rate_per_million {
        errors.in_range("tracing.samplingRatePerMillion", rate, 0, 1_000_000);
    }
    if let Some((scheme, _)) = tracing.endpoint.as_deref().and_then(|url| url.split_once("://")) {
        errors.check(
            matches!(scheme, "dns" | "unix" | "unix-abstract"),
            "tracing.endpoint",
            || format!("scheme {scheme:?} must be none, dns, unix or unix-abstract"),
        );
    }
}
