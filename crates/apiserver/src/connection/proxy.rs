use std::net::IpAddr;

use base64::Engine;
use http::Uri;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{ByteStream, ConnectError};
use crate::kubeconfig::ServerUrl;

/// What the environment says about proxies: `HTTPS_PROXY`, `HTTP_PROXY` and `NO_PROXY`, or the
/// same in small letters. The default is none.
#[derive(Clone, Debug, Default)]
pub struct ProxyEnvironment {
    https: Option<String>,
    http: Option<String>,
    exempt: String,
}

impl ProxyEnvironment {
    /// Asks `variable` for each variable's value.
    pub fn from_variables(variable: impl Fn(&str) -> Option<String>) -> Self {
        let either = |name: &str| {
            [name.to_owned(), name.to_ascii_lowercase()]
                .iter()
                .find_map(|name| variable(name).filter(|value| !value.is_empty()))
        };
        Self {
            https: either("HTTPS_PROXY"),
            http: either("HTTP_PROXY"),
            exempt: either("NO_PROXY").unwrap_or_default(),
        }
    }

    /// The proxy to reach `server` through, by the rules that Go's client follows: never for the
    /// machine itself, and not for what `NO_PROXY` lists.
    pub(crate) fn proxy_for(&self, server: &ServerUrl) -> Option<Uri> {
        let proxy = if server.is_tls() { &self.https } else { &self.http };
        let proxy = proxy.as_deref()?;
        let host = server.host().to_ascii_lowercase();
        let is_local = host == "localhost"
            || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
        if is_local || self.is_exempt(&host, server.port()) {
            return None;
        }
        let with_scheme =
            if proxy.contains("://") { proxy.to_owned() } else { format!("http://{proxy}") };
        match with_scheme.parse::<Uri>() {
            Ok(url) if url.host().is_some() => Some(url),
            _ => {
                tracing::warn!("the environment names a proxy that is no URL; it is not used");
                None
            }
        }
    }

    fn is_exempt(&self, host: &str, port: u16) -> bool {
        let address = host.parse::<IpAddr>().ok();
        self.exempt.split(',').map(str::trim).filter(|rule| !rule.is_empty()).any(|rule| {
            let rule = rule.to_ascii_lowercase();
            if rule == "*" {
                return true;
            }
            if let Some((network, bits)) = rule.split_once('/') {
                let network = network.parse::<IpAddr>().ok().zip(bits.parse::<u8>().ok());
                return network
                    .zip(address)
                    .is_some_and(|((network, bits), address)| contains(network, bits, address));
            }
            let bare = rule.trim_start_matches('[').trim_end_matches(']');
            if let Ok(exempt) = bare.parse::<IpAddr>() {
                return address == Some(exempt);
            }
            let (name, of_port) = match rule.rsplit_once(':') {
                Some((name, number)) => (name, number.parse::<u16>().ok()),
                None => (rule.as_str(), None),
            };
            if rule.contains(':') && of_port != Some(port) {
                return false;
            }
            let bare = name.trim_start_matches('[').trim_end_matches(']');
            if let (Ok(exempt), Some(address)) = (bare.parse::<IpAddr>(), address) {
                return exempt == address;
            }
            let name = name.strip_prefix('*').unwrap_or(name);
            match name.strip_prefix('.') {
                // Only what is beneath.
                Some(domain) => host.strip_suffix(domain).is_some_and(|rest| rest.ends_with('.')),
                // The name, and what is beneath.
                None => host
                    .strip_suffix(name)
                    .is_some_and(|rest| rest.is_empty() || rest.ends_with('.')),
            }
        })
    }
}

fn contains(network: IpAddr, bits: u8, address: IpAddr) -> bool {
    match (network, address) {
        (IpAddr::V4(network), IpAddr::V4(address)) => {
            let shift = 32_u32.saturating_sub(u32::from(bits));
            (network.to_bits() ^ address.to_bits()).checked_shr(shift).unwrap_or(0) == 0
        }
        (IpAddr::V6(network), IpAddr::V6(address)) => {
            let shift = 128_u32.saturating_sub(u32::from(bits));
            (network.to_bits() ^ address.to_bits()).checked_shr(shift).unwrap_or(0) == 0
        }
        _ => false,
    }
}

/// What a proxy speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProxyKind {
    /// `CONNECT`.
    Http,
    /// The same within TLS.
    Https,
    /// SOCKS version 5.
    Socks5,
}

/// A proxy on the way to the server.
#[derive(Clone)]
pub(crate) struct Proxy {
    pub(crate) kind: ProxyKind,
    pub(crate) host: String,
    pub(crate) port: u16,
    user: Option<(String, String)>,
}

impl std::fmt::Debug for Proxy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Proxy({:?} {}:{})", self.kind, self.host, self.port)
    }
}

/// A longer answer to `CONNECT` is none.
const MAX_ANSWER: usize = 8 * 1024;

impl Proxy {
    /// Reads a proxy's URL.
    pub(crate) fn from_url(url: &Uri) -> Result<Self, ConnectError> {
        let host = url.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        let (kind, default_port) = match url.scheme_str() {
            Some("http") => (ProxyKind::Http, 80),
            Some("https") => (ProxyKind::Https, 443),
            Some("socks5") => (ProxyKind::Socks5, 1080),
            other => {
                let problem = format!("its scheme {other:?} is not known");
                return Err(ConnectError::Proxy { proxy: host, problem });
            }
        };
        let authority = url.authority().map_or("", |authority| authority.as_str());
        let user = authority.rsplit_once('@').map(|(user, _)| {
            let (name, password) = user.split_once(':').unwrap_or((user, ""));
            (unescape(name), unescape(password))
        });
        Ok(Self { kind, host, port: url.port_u16().unwrap_or(default_port), user })
    }

    fn shown(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }

    fn refuses(&self, problem: impl Into<String>) -> ConnectError {
        ConnectError::Proxy { proxy: self.shown(), problem: problem.into() }
    }

    /// Asks, on a fresh connection to the proxy, for a way to `server`.
    pub(crate) async fn open_way(
        &self,
        stream: &mut Box<dyn ByteStream>,
        server: &ServerUrl,
    ) -> Result<(), ConnectError> {
        match self.kind {
            ProxyKind::Http | ProxyKind::Https => self.connect(stream, server).await,
            ProxyKind::Socks5 => self.socks5(stream, server).await,
        }
    }

    async fn connect(
        &self,
        stream: &mut Box<dyn ByteStream>,
        server: &ServerUrl,
    ) -> Result<(), ConnectError> {
        let broken = |source| ConnectError::ProxyIo { proxy: self.shown(), source };
        let authority = server.authority();
        let mut question = format!("CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n");
        if let Some((name, password)) = &self.user {
            let pair =
                base64::engine::general_purpose::STANDARD.encode(format!("{name}:{password}"));
            question.push_str(&format!("Proxy-Authorization: Basic {pair}\r\n"));
        }
        question.push_str("\r\n");
        stream.write_all(question.as_bytes()).await.map_err(broken)?;
        stream.flush().await.map_err(broken)?;
        // Byte by byte: what follows the answer belongs to the server.
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\n") {
            if answer.len() >= MAX_ANSWER {
                return Err(self.refuses("its answer is too long"));
            }
            answer.push(stream.read_u8().await.map_err(broken)?);
        }
        let answer = String::from_utf8_lossy(&answer);
        let status = answer.lines().next().unwrap_or_default();
        let is_open = status.starts_with("HTTP/1.")
            && status
                .split(' ')
                .nth(1)
                .is_some_and(|code| code.len() == 3 && code.starts_with('2'));
        if is_open { Ok(()) } else { Err(self.refuses(format!("it answers {status:?}"))) }
    }

    async fn socks5(
        &self,
        stream: &mut Box<dyn ByteStream>,
        server: &ServerUrl,
    ) -> Result<(), ConnectError> {
        let broken = |source| ConnectError::ProxyIo { proxy: self.shown(), source };
        // Version 5; how we can say who we are: not at all (0), by name and password (2).
        let methods: &[u8] = if self.user.is_some() { &[5, 2, 0, 2] } else { &[5, 1, 0] };
        stream.write_all(methods).await.map_err(broken)?;
        let mut choice = [0; 2];
        stream.read_exact(&mut choice).await.map_err(broken)?;
        match (choice, &self.user) {
            ([5, 0], _) => {}
            ([5, 2], Some((name, password))) => {
                let mut question = vec![1];
                for part in [name, password] {
                    let length = u8::try_from(part.len())
                        .map_err(|_| self.refuses("name or password are too long for SOCKS"))?;
                    question.push(length);
                    question.extend_from_slice(part.as_bytes());
                }
                stream.write_all(&question).await.map_err(broken)?;
                stream.read_exact(&mut choice).await.map_err(broken)?;
                if choice[1] != 0 {
                    return Err(self.refuses("it refuses name and password"));
                }
            }
            _ => return Err(self.refuses("it accepts none of our ways to say who we are")),
        }
        // Version 5, connect, reserved.
        let mut question = vec![5, 1, 0];
        match server.host().parse::<IpAddr>() {
            Ok(IpAddr::V4(address)) => {
                question.push(1);
                question.extend_from_slice(&address.octets());
            }
            Ok(IpAddr::V6(address)) => {
                question.push(4);
                question.extend_from_slice(&address.octets());
            }
            Err(_) => {
                let length = u8::try_from(server.host().len())
                    .map_err(|_| self.refuses("the server's name is too long for SOCKS"))?;
                question.extend_from_slice(&[3, length]);
                question.extend_from_slice(server.host().as_bytes());
            }
        }
        question.extend_from_slice(&server.port().to_be_bytes());
        stream.write_all(&question).await.map_err(broken)?;
        let mut answer = [0; 4];
        stream.read_exact(&mut answer).await.map_err(broken)?;
        if answer[..2] != [5, 0] {
            return Err(self.refuses(format!("it answers with code {}", answer[1])));
        }
        // The address it speaks from, which is of no interest.
        let length = match answer[3] {
            1 => 4,
            4 => 16,
            3 => usize::from(stream.read_u8().await.map_err(broken)?),
            kind => return Err(self.refuses(format!("it answers with an address of kind {kind}"))),
        };
        let mut address = vec![0; length + 2];
        stream.read_exact(&mut address).await.map_err(broken)?;
        Ok(())
    }
}

/// Undoes percent-encoding; what is none stays.
fn unescape(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut plain = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let digit =
            |offset: usize| bytes.get(at + offset).and_then(|byte| char::from(*byte).to_digit(16));
        match (bytes[at], digit(1), digit(2)) {
            (b'%', Some(high), Some(low)) => {
                plain.extend(u8::try_from(high * 16 + low));
                at += 3;
            }
            (byte, _, _) => {
                plain.push(byte);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&plain).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(no_proxy: &str) -> ProxyEnvironment {
        let no_proxy = no_proxy.to_owned();
        ProxyEnvironment::from_variables(move |name| match name {
            "https_proxy" => Some("proxy.example.com:3128".to_owned()),
            "NO_PROXY" => Some(no_proxy.clone()),
            _ => None,
        })
    }

    fn is_proxied(no_proxy: &str, server: &str) -> bool {
        let server = ServerUrl::parse(server, true).expect("a URL");
        environment(no_proxy).proxy_for(&server).is_some()
    }

    #[test]
    fn the_rules_are_those_of_gos_client() {
        for (no_proxy, server, expected) in [
            ("", "https://api.example.com:6443", true),
            ("", "https://127.0.0.1:6443", false),
            ("", "https://localhost:6443", false),
            ("", "https://[::1]:6443", false),
            ("", "http://api.example.com", false),
            ("*", "https://api.example.com", false),
            ("example.com", "https://api.example.com", false),
            ("example.com", "https://example.com", false),
            ("example.com", "https://badexample.com", true),
            (".example.com", "https://api.example.com", false),
            (".example.com", "https://example.com", true),
            ("*.example.com", "https://api.example.com", false),
            ("a.b, api.EXAMPLE.com", "https://api.example.com", false),
            ("api.example.com:6443", "https://api.example.com:6443", false),
            ("api.example.com:6444", "https://api.example.com:6443", true),
            ("10.0.0.1", "https://10.0.0.1:6443", false),
            ("10.0.0.2", "https://10.0.0.1:6443", true),
            ("10.0.0.0/8", "https://10.0.0.1:6443", false),
            ("10.0.0.0/8", "https://11.0.0.1:6443", true),
            ("0.0.0.0/0", "https://11.0.0.1:6443", false),
            ("fd00::/8", "https://[fd00::1]:6443", false),
            ("fd00::1", "https://[fd00::1]:6443", false),
            ("10.0.0.1:6443", "https://10.0.0.1:6443", false),
            ("10.0.0.1:80", "https://10.0.0.1:6443", true),
        ] {
            assert_eq!(is_proxied(no_proxy, server), expected, "{no_proxy:?} {server}");
        }
    }

    #[test]
    fn a_proxys_url_may_hold_a_name_and_a_password() {
        let url = "http://jane%40corp:p%3Ass@proxy:3128".parse().expect("a URL");
        let proxy = Proxy::from_url(&url).expect("a proxy");
        assert_eq!((proxy.host.as_str(), proxy.port), ("proxy", 3128));
        assert_eq!(proxy.user, Some(("jane@corp".to_owned(), "p:ss".to_owned())));
        assert!(!format!("{proxy:?}").contains("p:ss"));
    }
}
