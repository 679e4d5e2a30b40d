//! The adapter against a small working API server, within the process and over loopback.

#![expect(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]

mod connections;
mod credentials;
mod following;
mod histories;
mod proxies;
mod requests;

use std::error::Error;
use std::path::Path;
use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use rubelet_apiserver::{ApiError, ApiServer, ApiServerOptions, KubeConfig, ProxyEnvironment};
use rubelet_fake_apiserver::{FakeApiServer, FakeOptions};
use rubelet_types::Clock;
use serde_json::json;

fn server() -> FakeApiServer {
    FakeApiServer::new(FakeOptions::default())
}

fn options() -> ApiServerOptions {
    ApiServerOptions {
        user_agent: "kubelet/test".to_owned(),
        general: None,
        events: None,
        heartbeat_timeout: Duration::from_secs(10),
        request_timeout: Duration::from_secs(30),
        http2: true,
        proxies: ProxyEnvironment::default(),
    }
}

fn client(kubeconfig: &Path) -> ApiServer {
    let config = KubeConfig::load(kubeconfig).unwrap();
    ApiServer::new(&config, options(), Clock::system()).unwrap()
}

fn config_map(name: &str) -> ConfigMap {
    serde_json::from_value(json!({"metadata": {"name": name}, "data": {"k": "v"}})).unwrap()
}

/// The error with all its causes.
fn chain(error: &ApiError) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
