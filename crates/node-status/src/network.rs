use std::fmt::Debug;
use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::time::Duration;

use rubelet_linux::{DefaultRoute, Host, HostError, InterfaceAddress};
use tokio::time::{Instant, timeout};

use crate::addresses::{choose_default_address, choose_looked_up, has_to_detect};
use crate::{HostAddresses, NodeSettings};

/// DNS is asked again after this, or at once when its answer no longer fits the machine.
const LOOK_UP_PERIOD: Duration = Duration::from_secs(60);
/// DNS has this long to answer.
const LOOK_UP_DEADLINE: Duration = Duration::from_secs(5);

/// Addresses found by DNS.
type LookUp<'a> = Pin<Box<dyn Future<Output = io::Result<Vec<IpAddr>>> + Send + 'a>>;

/// The network around the node.
pub trait NodeNetwork: Debug + Send + Sync + 'static {
    /// The addresses of the machine's interfaces.
    ///
    /// # Errors
    /// When the kernel does not tell.
    fn interfaces(&self) -> io::Result<Vec<InterfaceAddress>>;

    /// The default routes; none on a kernel without a table of routes.
    ///
    /// # Errors
    /// When the kernel does not tell.
    fn default_routes(&self) -> Result<Option<Vec<DefaultRoute>>, HostError>;

    /// The addresses that DNS, or a file of hosts, knows for a name.
    fn look_up<'a>(&'a self, name: &'a str) -> LookUp<'a>;
}

/// The network of a machine.
#[derive(Clone, Debug)]
pub struct MachineNetwork(pub Host);

impl NodeNetwork for MachineNetwork {
    fn interfaces(&self) -> io::Result<Vec<InterfaceAddress>> {
        self.0.interface_addresses()
    }

    fn default_routes(&self) -> Result<Option<Vec<DefaultRoute>>, HostError> {
        self.0.default_routes()
    }

    fn look_up<'a>(&'a self, name: &'a str) -> LookUp<'a> {
        Box::pin(async move {
            let found = tokio::net::lookup_host((name, 0)).await?;
            Ok(found.map(|address| address.ip()).collect())
        })
    }
}

/// What is remembered of DNS' answers.
#[derive(Debug, Default)]
pub(crate) struct AddressSource {
    looked_up: Vec<IpAddr>,
    look_up_at: Option<Instant>,
}

impl AddressSource {
    /// The machine's addresses. DNS and routes are asked only where the settings leave the choice to
    /// them; what DNS said last counts while it does not answer.
    pub(crate) async fn gather(
        &mut self,
        settings: &NodeSettings,
        network: &dyn NodeNetwork,
    ) -> HostAddresses {
        let interfaces = network.interfaces().unwrap_or_else(|error| {
            tracing::warn!(%error, "Cannot list the network interfaces");
            Vec::new()
        });
        let mut found = HostAddresses {
            on_interfaces: interfaces.iter().map(|entry| entry.address).collect(),
            ..HostAddresses::default()
        };
        if !has_to_detect(settings) {
            return found;
        }
        found.looked_up.clone_from(&self.looked_up);
        let is_due = self.look_up_at.is_none_or(|at| Instant::now() >= at);
        let no_longer_fits =
            !self.looked_up.is_empty() && choose_looked_up(settings, &found).is_none();
        if is_due || no_longer_fits {
            self.look_up(&settings.name, network).await;
            found.looked_up.clone_from(&self.looked_up);
        }
        found.default_route = Some(match network.default_routes() {
            Ok(routes) => {
                choose_default_address(routes.as_deref(), &interfaces, settings.prefers_ipv6())
            }
            Err(error) => Err(rubelet_types::error_chain(&error)),
        });
        found
    }

    async fn look_up(&mut self, name: &str, network: &dyn NodeNetwork) {
        match timeout(LOOK_UP_DEADLINE, network.look_up(name)).await {
            Ok(Ok(addresses)) => self.looked_up = addresses,
            Ok(Err(error)) => tracing::debug!(name, %error, "DNS does not know the node's name"),
            Err(_) => tracing::debug!(name, "DNS does not answer"),
        }
        self.look_up_at = Some(Instant::now() + LOOK_UP_PERIOD);
    }
}
