//! A real API server keeps the contract that the fake one keeps, and is followed through what
//! happens to it.
//!
//! `cargo test -p rubelet-fake-apiserver --test real -- NAME` runs some of it.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, ensure};
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use rubelet_apiserver::{
    ApiErrorKind, ApiServer, ApiServerOptions, ClientCertificate, Event, KubeConfig, Selector,
};
use rubelet_config::KubeletConfiguration;
use rubelet_control_plane::{Cache, Component, ControlPlane, Options, Tools};
use rubelet_fake_apiserver::contract::{self, ContractOptions};
use rubelet_test_bed::trials::{self, Trial};
use rubelet_types::Clock;
use serde_json::json;
use tokio::runtime::Runtime;
use tokio::time::timeout;

/// For what takes no time of its own.
const PATIENCE: Duration = Duration::from_secs(180);

struct Ground {
    control_plane: ControlPlane,
    runtime: Runtime,
}

const TRIALS: &[Trial<Ground>] = &[
    Trial { name: "contract_over_http2", run: |ground| ground.keeps_the_contract(true) },
    Trial { name: "contract_over_http1", run: |ground| ground.keeps_the_contract(false) },
    Trial { name: "a_node_is_known_by_its_certificate", run: Ground::a_node_is_known },
    Trial { name: "a_watch_outlives_the_servers_restart", run: Ground::a_watch_outlives_a_restart },
];

fn main() -> ExitCode {
    trials::run(&[TRIALS], Ground::find)
}

impl Ground {
    fn find() -> Result<Self, String> {
        let start = || -> anyhow::Result<Self> {
            let cache = Cache::from_environment()?;
            let tools = Tools::find(&cache)?;
            let runtime = Runtime::new()?;
            let options = Options::api_only(cache.run());
            let control_plane = runtime.block_on(ControlPlane::start(&tools, options))?;
            Ok(Self { control_plane, runtime })
        };
        start().map_err(|error| format!("{error:#}"))
    }

    fn keeps_the_contract(&self, http2: bool) -> anyhow::Result<()> {
        let api = client(&self.control_plane.admin_kubeconfig(), http2)?;
        let run = if http2 { "two" } else { "one" }.to_owned();
        let options = ContractOptions { api, run, patience: PATIENCE };
        let report = self.runtime.block_on(contract::run(&options));
        ensure!(report.failures().count() == 0, "{report}");
        Ok(())
    }

    fn a_node_is_known(&self) -> anyhow::Result<()> {
        let node = self.control_plane.node("known")?;
        for kubeconfig in [&node.kubeconfig, &node.kubeconfig_inline] {
            let found = ClientCertificate::check(kubeconfig, Clock::system().now())?;
            ensure!(found.is_valid(), "{}: {found:?}", kubeconfig.display());
            let api = client(kubeconfig, true)?;
            self.runtime.block_on(async {
                let nodes = api.cluster::<Node>();
                let known: Node = serde_json::from_value(json!({"metadata": {"name": "known"}}))?;
                match nodes.create(&known).await {
                    Err(error) if !error.is_already_exists() => return Err(error.into()),
                    _ => {}
                }
                nodes.get("known").await?;
                let other: Node = serde_json::from_value(json!({"metadata": {"name": "other"}}))?;
                let refused = nodes.create(&other).await;
                let kind = refused.err().map(|error| error.kind);
                ensure!(kind == Some(ApiErrorKind::Forbidden), "another node: {kind:?}");
                anyhow::Ok(())
            })?;
        }
        Ok(())
    }

    fn a_watch_outlives_a_restart(&self) -> anyhow::Result<()> {
        let api = client(&self.control_plane.admin_kubeconfig(), true)?;
        let maps = api.namespaced::<ConfigMap>("default");
        let map = |name: &str| -> anyhow::Result<ConfigMap> {
            let labels = json!({"trial": "restart"});
            Ok(serde_json::from_value(json!({"metadata": {"name": name, "labels": labels}}))?)
        };
        self.runtime
            .block_on(async {
                let followed = async {
                    maps.create(&map("before")?).await?;
                    let mut watch = maps.watch(&Selector::labels("trial=restart"));
                    let first = watch.next().await;
                    ensure!(
                        matches!(&first, Event::Replaced(set) if set.objects.len() == 1),
                        "{first:?}"
                    );
                    self.control_plane.kill(Component::ApiServer)?;
                    self.control_plane.start_again(Component::ApiServer).await?;
                    maps.create(&map("after")?).await?;
                    loop {
                        let has_it =
                            |map: &ConfigMap| map.metadata.name.as_deref() == Some("after");
                        match watch.next().await {
                            Event::Applied(map) if has_it(&map) => return Ok(()),
                            Event::Replaced(set) if set.objects.iter().any(has_it) => return Ok(()),
                            _ => {}
                        }
                    }
                };
                timeout(PATIENCE, followed).await
            })
            .context("the watch does not go on")?
    }
}

fn client(kubeconfig: &Path, http2: bool) -> anyhow::Result<ApiServer> {
    let config = KubeConfig::load(kubeconfig)?;
    let options = ApiServerOptions {
        http2,
        general: None,
        events: None,
        ..ApiServerOptions::from_configuration(&KubeletConfiguration::default(), "kubelet/test")
    };
    Ok(ApiServer::new(&config, options, Clock::system())?)
}
