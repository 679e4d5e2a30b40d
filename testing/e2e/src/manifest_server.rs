//! A web server on the node's loopback that hands out manifests.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::namespaces::Namespaces;

const TIMEOUT: Duration = Duration::from_secs(10);

/// How often the server looks whether it is to end.
const POLL: Duration = Duration::from_millis(10);

/// What is answered to everybody who asks, and what was asked.
#[derive(Debug)]
struct Exchange {
    status: u16,
    body: Vec<u8>,
    /// The heads of the requests, oldest first.
    requests: Vec<String>,
    is_over: bool,
}

/// A web server inside of the namespaces with one answer for all paths, which can be changed.
///
/// Dropping it closes the port.
#[derive(Debug)]
pub struct ManifestServer {
    address: SocketAddr,
    exchange: Arc<Mutex<Exchange>>,
    server: Option<JoinHandle<()>>,
}

impl ManifestServer {
    /// Listens on `port` of the loopback.
    ///
    /// # Errors
    /// When the port is taken.
    pub fn start(namespaces: &Namespaces, port: u16, body: &str) -> io::Result<Self> {
        let address = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port);
        let listener = namespaces.listen(address)?;
        listener.set_nonblocking(true)?;
        let exchange = Arc::new(Mutex::new(Exchange {
            status: 200,
            body: body.into(),
            requests: Vec::new(),
            is_over: false,
        }));
        let shared = Arc::clone(&exchange);
        let server = thread::spawn(move || serve(&listener, &shared));
        Ok(Self { address, exchange, server: Some(server) })
    }

    /// The URL of what it hands out.
    pub fn url(&self) -> String {
        format!("http://{}/manifests", self.address)
    }

    /// Answers otherwise from now on.
    pub fn answer(&self, status: u16, body: &str) {
        let mut exchange = lock(&self.exchange);
        exchange.status = status;
        exchange.body = body.into();
    }

    /// The heads of the requests so far.
    pub fn requests(&self) -> Vec<String> {
        lock(&self.exchange).requests.clone()
    }
}

impl Drop for ManifestServer {
    fn drop(&mut self) {
        lock(&self.exchange).is_over = true;
        // It ends by itself then; a panic in there has been printed already.
        let _ = self.server.take().map(JoinHandle::join);
    }
}

fn lock(exchange: &Mutex<Exchange>) -> MutexGuard<'_, Exchange> {
    exchange.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Polls, since a blocked `accept` could not be told to end, and an open listener keeps the network
/// namespace alive.
fn serve(listener: &TcpListener, exchange: &Mutex<Exchange>) {
    while !lock(exchange).is_over {
        match listener.accept() {
            // A caller that hangs up is no concern of the server.
            Ok((stream, _)) => drop(answer(stream, exchange)),
            Err(_) => thread::sleep(POLL),
        }
    }
}

fn answer(stream: TcpStream, exchange: &Mutex<Exchange>) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    while reader.read_line(&mut head)? != 0 && !head.ends_with("\r\n\r\n") {}
    let (status, body) = {
        let mut exchange = lock(exchange);
        exchange.requests.push(head);
        (exchange.status, exchange.body.clone())
    };
    let mut stream = reader.into_inner();
    write!(
        stream,
        "HTTP/1.1 {status} Answer\r\nContent-Type: application/yaml\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n",
        body.len()
    )?;
    stream.write_all(&body)
}
