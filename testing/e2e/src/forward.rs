//! A port of this machine behind which is one of a hub.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use anyhow::Context;
use rubelet_control_plane::Machine;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use crate::network::Hub;

/// Takes connections on loopback and passes them on into a hub, until it is dropped.
#[derive(Debug)]
pub(crate) struct Forwarder {
    address: SocketAddr,
    task: JoinHandle<()>,
}

impl Forwarder {
    /// Listens on `wish` if nobody else does, otherwise on a port that is free.
    pub(crate) async fn start(hub: Arc<Hub>, to: SocketAddr, wish: u16) -> anyhow::Result<Self> {
        let local = Ipv4Addr::LOCALHOST;
        let listener = match TcpListener::bind((local, wish)).await {
            Ok(listener) => listener,
            Err(_) => TcpListener::bind((local, 0)).await.context("no port is free")?,
        };
        let address = listener.local_addr().context("a port without a number")?;
        let task = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(pass_on(client, Arc::clone(&hub), to));
            }
        });
        Ok(Self { address, task })
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Whatever ends a connection, both sides see it closed, and that is all there is to say.
async fn pass_on(mut client: TcpStream, hub: Arc<Hub>, to: SocketAddr) {
    let connected = tokio::task::spawn_blocking(move || hub.connect(to)).await;
    let Ok(Ok(server)) = connected else { return };
    if server.set_nonblocking(true).is_err() {
        return;
    }
    if let Ok(mut server) = TcpStream::from_std(server) {
        let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
    }
}
