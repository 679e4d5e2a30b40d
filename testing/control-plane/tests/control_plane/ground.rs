//! What the trials share: one control plane for all that do it no harm.

use std::future::Future;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::Context;
use rubelet_control_plane::{Cache, ControlPlane, Options, Tools};
use tokio::time::Instant;

/// How long something may take that takes a second where nothing else happens.
pub(crate) const SOON: Duration = Duration::from_secs(120);

pub(crate) struct Ground {
    pub(crate) tools: Tools,
    run: PathBuf,
    shared: OnceLock<ControlPlane>,
}

impl Ground {
    /// The reason, where nothing can be run.
    pub(crate) fn find() -> Result<Self, String> {
        let cache = Cache::from_environment().map_err(|error| format!("{error:#}"))?;
        let tools = Tools::find(&cache).map_err(|missing| missing.to_string())?;
        Ok(Self { tools, run: cache.run(), shared: OnceLock::new() })
    }

    /// A control plane with all components.
    pub(crate) fn options(&self) -> Options {
        Options::new(self.run.clone())
    }

    /// Etcd and the API server alone.
    pub(crate) fn api_only(&self) -> Options {
        Options::api_only(self.run.clone())
    }

    /// A control plane of its own.
    pub(crate) fn start(&self, options: Options) -> anyhow::Result<ControlPlane> {
        block_on(ControlPlane::start(&self.tools, options))
    }

    /// The one that is shared: nothing of it may be stopped.
    pub(crate) fn shared(&self) -> anyhow::Result<&ControlPlane> {
        if let Some(control_plane) = self.shared.get() {
            return Ok(control_plane);
        }
        let started = self.start(self.options())?;
        Ok(self.shared.get_or_init(|| started))
    }
}

/// Runs something asynchronous to its end.
pub(crate) fn block_on<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("no executor")?
        .block_on(work)
}

/// Looks until `look` finds something; it says what there is in the meantime.
pub(crate) async fn eventually<T>(
    what: &str,
    mut look: impl AsyncFnMut() -> anyhow::Result<Result<T, String>>,
) -> anyhow::Result<T> {
    let deadline = Instant::now() + SOON;
    loop {
        let state = match look().await? {
            Ok(found) => return Ok(found),
            Err(state) => state,
        };
        anyhow::ensure!(Instant::now() < deadline, "waited for {what}; at the end: {state}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
