//! The nested objects of `KubeletConfiguration`.

use std::collections::BTreeMap;
use std::fmt;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use serde::{Deserialize, Deserializer, Serialize};

use crate::GoDuration;
use crate::go_duration::text_or_nanoseconds;

pub(crate) fn is_zero<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// HTTP headers by name. They may hold credentials, so `Debug` masks the values.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct HttpHeaders(pub BTreeMap<String, Vec<String>>);

impl fmt::Debug for HttpHeaders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.0.keys().map(|name| (name, "<masked>"))).finish()
    }
}

/// How the kubelet API finds out who asks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct KubeletAuthentication {
    /// By client certificate.
    pub x509: X509Authentication,
    /// By bearer token, which the API server reviews.
    pub webhook: WebhookAuthentication,
    /// Without anything.
    pub anonymous: AnonymousAuthentication,
}

/// Authentication by client certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct X509Authentication {
    /// Authorities that may sign client certificates, PEM; none turns this way off.
    #[serde(rename = "clientCAFile", skip_serializing_if = "is_zero")]
    pub client_ca_file: String,
}

/// Authentication by bearer token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct WebhookAuthentication {
    /// It is on.
    pub enabled: bool,
    /// How long an answer is kept.
    #[serde(rename = "cacheTTL")]
    pub cache_ttl: GoDuration,
}

impl Default for WebhookAuthentication {
    fn default() -> Self {
        Self { enabled: true, cache_ttl: GoDuration::from_secs(120) }
    }
}

/// Requests that come with no credentials.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AnonymousAuthentication {
    /// They are accepted as user `system:anonymous`.
    pub enabled: bool,
}

/// How the kubelet API decides who may do what.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct KubeletAuthorization {
    /// `AlwaysAllow` or `Webhook`.
    #[serde(skip_serializing_if = "is_zero")]
    pub mode: String,
    /// For `Webhook`.
    pub webhook: WebhookAuthorization,
}

impl Default for KubeletAuthorization {
    fn default() -> Self {
        Self { mode: "Webhook".to_owned(), webhook: WebhookAuthorization::default() }
    }
}

/// Authorization by the API server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct WebhookAuthorization {
    /// How long a "yes" is kept.
    #[serde(rename = "cacheAuthorizedTTL")]
    pub cache_authorized_ttl: GoDuration,
    /// How long a "no" is kept.
    #[serde(rename = "cacheUnauthorizedTTL")]
    pub cache_unauthorized_ttl: GoDuration,
}

impl Default for WebhookAuthorization {
    fn default() -> Self {
        Self {
            cache_authorized_ttl: GoDuration::from_secs(300),
            cache_unauthorized_ttl: GoDuration::from_secs(30),
        }
    }
}

/// How pods may use swap.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct MemorySwap {
    /// `NoSwap` (also if empty) or `LimitedSwap`.
    #[serde(skip_serializing_if = "is_zero")]
    pub swap_behavior: String,
}

/// Back-off of containers that crash.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct CrashLoopBackOff {
    /// Longest wait between two restarts, 1s to 300s; none only if gate `KubeletCrashLoopBackOffMax`
    /// is off.
    #[serde(skip_serializing_if = "is_zero")]
    pub max_container_restart_period: Option<GoDuration>,
}

impl CrashLoopBackOff {
    /// The longest wait if nothing else is said.
    pub const DEFAULT_MAX: GoDuration = GoDuration::from_secs(300);
}

impl Default for CrashLoopBackOff {
    fn default() -> Self {
        Self { max_container_restart_period: Some(Self::DEFAULT_MAX) }
    }
}

/// Time for pods of one priority and above to end when the node shuts down.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ShutdownGracePeriodByPodPriority {
    /// Lowest priority of the group.
    #[serde(default)]
    pub priority: i32,
    /// Seconds.
    #[serde(default)]
    pub shutdown_grace_period_seconds: i64,
}

/// Memory kept from pods on one NUMA node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MemoryReservation {
    /// The NUMA node.
    #[serde(default)]
    pub numa_node: i32,
    /// Amounts of `memory` and `hugepages-<size>`.
    #[serde(default)]
    pub limits: BTreeMap<String, ApiQuantity>,
}

/// Where traces go.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct TracingConfiguration {
    /// OTLP gRPC collector; not set is `localhost:4317`.
    #[serde(skip_serializing_if = "is_zero")]
    pub endpoint: Option<String>,
    /// Traces in a million that are collected; not set is none but those the caller samples.
    #[serde(skip_serializing_if = "is_zero")]
    pub sampling_rate_per_million: Option<i32>,
}

/// User namespaces of pods.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct UserNamespaces {
    /// User and group ids per pod; not set is [`UserNamespaces::DEFAULT_IDS_PER_POD`].
    #[serde(skip_serializing_if = "is_zero")]
    pub ids_per_pod: Option<i64>,
}

impl UserNamespaces {
    /// Ids per pod if nothing else is said.
    pub const DEFAULT_IDS_PER_POD: i64 = 65_536;
}

/// The log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct LoggingConfiguration {
    /// `text` or `json`.
    #[serde(skip_serializing_if = "is_zero")]
    pub format: String,
    /// Longest time a line may stay in memory; this kubelet writes each line at once.
    #[serde(deserialize_with = "text_or_nanoseconds")]
    pub flush_frequency: GoDuration,
    /// Lines up to this level are written.
    pub verbosity: u32,
    /// Other levels for some files; text format only.
    #[serde(skip_serializing_if = "is_zero")]
    pub vmodule: Vec<VModuleItem>,
    /// What only one of the formats knows.
    pub options: FormatOptions,
}

impl Default for LoggingConfiguration {
    fn default() -> Self {
        Self {
            format: "text".to_owned(),
            flush_frequency: GoDuration::from_secs(5),
            verbosity: 0,
            vmodule: Vec::new(),
            options: FormatOptions::default(),
        }
    }
}

/// The level of some files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VModuleItem {
    /// File name without its extension; `*` and `?` match anything.
    #[serde(default)]
    pub file_pattern: String,
    /// The level.
    #[serde(default)]
    pub verbosity: u32,
}

/// Options of the log formats.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct FormatOptions {
    /// Of format `text`.
    pub text: OutputRouting,
    /// Of format `json`.
    pub json: OutputRouting,
}

/// Where lines of one format go; gate `LoggingAlphaOptions`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct OutputRouting {
    /// Errors to standard error, everything else to standard output.
    #[serde(skip_serializing_if = "is_zero")]
    pub split_stream: bool,
    /// Bytes of other lines that may stay in memory, a quantity; this kubelet writes each line at
    /// once.
    #[serde(deserialize_with = "quantity_text")]
    pub info_buffer_size: ApiQuantity,
}

impl Default for OutputRouting {
    fn default() -> Self {
        Self { split_stream: false, info_buffer_size: ApiQuantity("0".to_owned()) }
    }
}

/// A quantity may be written as a bare number, which YAML makes of `512`.
fn quantity_text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ApiQuantity, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum TextOrNumber {
        Text(String),
        Number(serde_json::Number),
    }
    Ok(ApiQuantity(match TextOrNumber::deserialize(deserializer)? {
        TextOrNumber::Text(text) => text,
        TextOrNumber::Number(number) => number.to_string(),
    }))
}
