//! The fake server keeps the contract that real ones keep.

#![expect(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]

use std::time::Duration;

use rubelet_apiserver::{ApiServer, ApiServerOptions, KubeConfig};
use rubelet_config::KubeletConfiguration;
use rubelet_fake_apiserver::contract::{self, ContractOptions};
use rubelet_fake_apiserver::{Authority, FakeApiServer, FakeOptions, Listening};
use rubelet_types::Clock;
use serde_json::json;

async fn assert_keeps_the_contract(api: ApiServer) {
    let run = "1".to_owned();
    let options = ContractOptions { api, run, patience: Duration::from_secs(60) };
    let report = contract::run(&options).await;
    assert_eq!(report.failures().count(), 0, "{report}");
}

async fn over_loopback(listening: &Listening, http2: bool) -> ApiServer {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), listening.kubeconfig(&json!({}))).unwrap();
    let config = KubeConfig::load(file.path()).unwrap();
    let options = ApiServerOptions {
        http2,
        general: None,
        events: None,
        ..ApiServerOptions::from_configuration(&KubeletConfiguration::default(), "kubelet/test")
    };
    ApiServer::new(&config, options, Clock::system()).unwrap()
}

#[tokio::test(start_paused = true)]
async fn within_the_process() {
    let server = FakeApiServer::new(FakeOptions::default());
    assert_keeps_the_contract(server.client()).await;
}

#[tokio::test]
async fn over_loopback_in_the_clear() {
    let server = FakeApiServer::new(FakeOptions::default());
    let listening = server.listen().await.unwrap();
    assert_keeps_the_contract(over_loopback(&listening, true).await).await;
}

#[tokio::test]
async fn over_http2_and_tls() {
    let server = FakeApiServer::new(FakeOptions::default());
    let listening = server.listen_with_tls(&Authority::new()).await.unwrap();
    assert_keeps_the_contract(over_loopback(&listening, true).await).await;
}

#[tokio::test]
async fn over_http1_and_tls() {
    let server = FakeApiServer::new(FakeOptions::default());
    let listening = server.listen_with_tls(&Authority::new()).await.unwrap();
    assert_keeps_the_contract(over_loopback(&listening, false).await).await;
}
