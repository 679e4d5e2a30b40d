//! `staticPodURL` as a source.

use std::fmt;
use std::time::Duration;

use ::http::header::AUTHORIZATION;
use ::http::uri::Scheme;
use ::http::{HeaderMap, HeaderName, HeaderValue, Uri};
use base64::Engine;
use hyper::body::Bytes;
use k8s_openapi::api::core::v1::Pod;
use tokio::time::MissedTickBehavior;
use tracing::{debug, info, warn};

use super::http_client::{GetError, HttpClient};
use crate::decode::{MAX_MANIFEST_BYTES, ManifestWarning, decode_pod_or_pod_list};
use crate::{ManifestError, ManifestOrigin, PodSourceHandle, StaticPodPolicy, prepare_static_pod};

const TIMEOUT: Duration = Duration::from_secs(10);
/// Failures in a row that are worth a line each.
const LOGGED_FAILURES: u32 = 3;

/// `staticPodURL` or one of its headers is malformed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidManifestUrl {
    /// It is no `http` or `https` URL.
    #[error("{0:?} is no http or https URL")]
    Url(String),
    /// A header's name or value cannot be sent. The value is not shown: it may be a secret.
    #[error("the header {0:?} of the manifest URL cannot be sent")]
    Header(String),
}

/// Why a check of the URL changed nothing.
#[derive(Debug, thiserror::Error)]
enum CheckError {
    #[error("{0}")]
    Get(GetError),
    #[error("zero-length data received")]
    Empty,
    #[error("couldn't parse as single or multiple pods: {0}")]
    Manifest(ManifestError),
}

/// Reads `staticPodURL` and hands over its pods.
pub(crate) struct HttpSource {
    client: HttpClient,
    url: Uri,
    /// The URL as it was configured, which the pods' uids follow from.
    origin: ManifestOrigin,
    headers: HeaderMap,
    period: Duration,
    policy: StaticPodPolicy,
    handle: PodSourceHandle,
}

impl fmt::Debug for HttpSource {
    /// Without the origin and the headers: they may hold credentials.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpSource").field("url", &self.url).finish_non_exhaustive()
    }
}

/// What a check found.
enum Checked {
    Unchanged,
    Pods(Vec<Pod>, Vec<ManifestWarning>),
}

impl HttpSource {
    pub(crate) fn new(
        url: &str,
        headers: &[(String, String)],
        period: Duration,
        policy: StaticPodPolicy,
        handle: PodSourceHandle,
    ) -> Result<Self, InvalidManifestUrl> {
        let parsed: Option<Uri> = url.parse().ok();
        let is_http = |uri: &Uri| {
            uri.scheme().is_some_and(|it| *it == Scheme::HTTP || *it == Scheme::HTTPS)
                && uri.host().is_some_and(|host| !host.is_empty())
        };
        let Some(parsed) = parsed.filter(is_http) else {
            return Err(InvalidManifestUrl::Url(url.to_owned()));
        };
        let (parsed, credentials) = split_credentials(parsed);
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            let invalid = || InvalidManifestUrl::Header(name.clone());
            let key = HeaderName::from_bytes(name.as_bytes()).map_err(|_| invalid())?;
            let mut value = HeaderValue::from_str(value).map_err(|_| invalid())?;
            value.set_sensitive(true);
            map.append(key, value);
        }
        if let Some(credentials) = credentials
            && !map.contains_key(AUTHORIZATION)
        {
            let mut value = HeaderValue::from_str(&format!("Basic {credentials}"))
                .map_err(|_| InvalidManifestUrl::Url(parsed.to_string()))?;
            value.set_sensitive(true);
            map.insert(AUTHORIZATION, value);
        }
        let client = HttpClient::new(TIMEOUT, MAX_MANIFEST_BYTES);
        let origin = ManifestOrigin::Url(url.to_owned());
        Ok(Self { client, url: parsed, origin, headers: map, period, policy, handle })
    }

    /// Runs until nobody takes the pods any more.
    pub(crate) async fn run(self) {
        info!(url = %self.url, "Reading static pods");
        let mut ticks = tokio::time::interval(self.period.max(Duration::from_millis(1)));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut last: Option<Bytes> = None;
        let mut failures: u32 = 0;
        loop {
            ticks.tick().await;
            let error = match self.check(&mut last).await {
                Ok(Checked::Unchanged) => None,
                Ok(Checked::Pods(pods, warnings)) => {
                    if !warnings.is_empty() {
                        let warnings: Vec<String> =
                            warnings.iter().map(ToString::to_string).collect();
                        warn!(url = %self.url, warnings = warnings.join("; "),
                            "Manifest has suspicious content");
                    }
                    if !self.handle.set(pods).await {
                        return;
                    }
                    None
                }
                Err(CheckError::Empty) => {
                    // No pods is an answer: the source has spoken.
                    if !self.handle.set(Vec::new()).await {
                        return;
                    }
                    Some(CheckError::Empty)
                }
                Err(error) => Some(error),
            };
            match error {
                None => {
                    if std::mem::take(&mut failures) > 0 {
                        info!(url = %self.url, "Successfully read pods from URL");
                    }
                }
                Some(error) => {
                    if failures < LOGGED_FAILURES {
                        warn!(url = %self.url, %error, "Failed to read pods from URL");
                    } else {
                        debug!(url = %self.url, %error, "Failed to read pods from URL");
                    }
                    failures = failures.saturating_add(1);
                }
            }
        }
    }

    /// Reads the URL once. A body that cannot be used is remembered like a good one: it is not
    /// looked at again before it changes, and the pods stay as they are.
    async fn check(&self, last: &mut Option<Bytes>) -> Result<Checked, CheckError> {
        let body = self.client.get(&self.url, &self.headers).await.map_err(CheckError::Get)?;
        if body.is_empty() {
            *last = None;
            return Err(CheckError::Empty);
        }
        if last.as_ref() == Some(&body) {
            return Ok(Checked::Unchanged);
        }
        *last = Some(body.clone());
        let (origin, policy) = (self.origin.clone(), self.policy.clone());
        let decoded = tokio::task::spawn_blocking(move || pods_of(&body, &origin, &policy));
        match decoded.await {
            Ok(decoded) => decoded.map_err(CheckError::Manifest),
            // Only at shutdown of the executor.
            Err(_) => Ok(Checked::Unchanged),
        }
    }
}

/// Takes `user:password@` out of the URL, which is shown in logs, as a header would carry it.
fn split_credentials(url: Uri) -> (Uri, Option<String>) {
    let Some((credentials, host)) =
        url.authority().and_then(|authority| authority.as_str().rsplit_once('@'))
    else {
        return (url, None);
    };
    let credentials = percent_decoded(credentials);
    let authority = host.parse();
    let mut parts = url.clone().into_parts();
    parts.authority = authority.ok();
    let encoded = base64::engine::general_purpose::STANDARD.encode(credentials);
    (Uri::from_parts(parts).unwrap_or(url), Some(encoded))
}

fn percent_decoded(text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let escaped = (*first == b'%').then(|| after.get(..2)).flatten();
        let decoded = escaped
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 16).ok());
        bytes.push(decoded.unwrap_or(*first));
        rest = if decoded.is_some() { &after[2..] } else { after };
    }
    bytes
}

/// All pods of a body, or none: what is meant is not clear when a part of it is wrong.
fn pods_of(
    body: &[u8],
    origin: &ManifestOrigin,
    policy: &StaticPodPolicy,
) -> Result<Checked, ManifestError> {
    let manifest = decode_pod_or_pod_list(body)?;
    let pods = manifest
        .pods
        .into_iter()
        .map(|pod| prepare_static_pod(pod, origin, policy))
        .collect::<Result<_, _>>()?;
    Ok(Checked::Pods(pods, manifest.warnings))
}

#[cfg(test)]
mod tests;
