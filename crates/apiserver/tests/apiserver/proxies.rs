//! Ways to the server through somebody else.

use std::path::Path;
use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use rubelet_apiserver::{ApiServer, ApiServerOptions, KubeConfig, ProxyEnvironment};
use rubelet_fake_apiserver::{Authority, Listening};
use rubelet_types::Clock;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use super::{chain, client, options, server};

const PATIENCE: Duration = Duration::from_secs(60);

/// Takes one kind of request for a way to the server, and says what it was asked for.
async fn proxy(is_socks: bool, told: tokio::sync::mpsc::Sender<String>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let told = told.clone();
            tokio::spawn(async move {
                let _ = if is_socks { socks(stream, told).await } else { http(stream, told).await };
            });
        }
    });
    port
}

async fn http(
    mut stream: TcpStream,
    told: tokio::sync::mpsc::Sender<String>,
) -> std::io::Result<()> {
    let mut question = Vec::new();
    while !question.ends_with(b"\r\n\r\n") {
        question.push(stream.read_u8().await?);
    }
    let question = String::from_utf8_lossy(&question).into_owned();
    let to = question.split(' ').nth(1).unwrap_or_default().to_owned();
    let is_known = question.contains("Proxy-Authorization: Basic amFuZTpwYXNz");
    told.send(question).await.unwrap();
    if !is_known {
        return stream.write_all(b"HTTP/1.1 407 Who are you\r\n\r\n").await;
    }
    let mut server = TcpStream::connect(to).await?;
    stream.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").await?;
    copy_bidirectional(&mut stream, &mut server).await.map(drop)
}

async fn socks(
    mut stream: TcpStream,
    told: tokio::sync::mpsc::Sender<String>,
) -> std::io::Result<()> {
    let mut head = [0; 2];
    stream.read_exact(&mut head).await?;
    let mut methods = vec![0; head[1].into()];
    stream.read_exact(&mut methods).await?;
    stream.write_all(&[5, 0]).await?;
    let mut question = [0; 10];
    stream.read_exact(&mut question).await?;
    told.send(format!("{question:?}")).await.unwrap();
    let port = u16::from_be_bytes([question[8], question[9]]);
    let mut server = TcpStream::connect(("127.0.0.1", port)).await?;
    stream.write_all(&[5, 0, 0, 1, 127, 0, 0, 1, 0, 0]).await?;
    copy_bidirectional(&mut stream, &mut server).await.map(drop)
}

fn write(directory: &Path, listening: &Listening, proxy: Option<&str>) -> std::path::PathBuf {
    let mut config: Value = serde_json::from_str(&listening.kubeconfig(&json!({}))).unwrap();
    config["clusters"][0]["cluster"]["proxy-url"] = json!(proxy);
    let path = directory.join("kubeconfig");
    std::fs::write(&path, config.to_string()).unwrap();
    path
}

#[tokio::test]
async fn a_proxy_of_the_kubeconfig_is_used() {
    let server = server();
    let listening = server.listen_with_tls(&Authority::new()).await.unwrap();
    let directory = tempfile::tempdir().unwrap();
    let (tell, mut told) = tokio::sync::mpsc::channel(10);
    let http = proxy(false, tell.clone()).await;
    let socks = proxy(true, tell).await;
    let get = async |url: &str| {
        let api = client(&write(directory.path(), &listening, Some(url)));
        let got = timeout(PATIENCE, api.namespaced::<ConfigMap>("default").get("x")).await.unwrap();
        got.unwrap_err()
    };
    let error = get(&format!("http://jane:pass@127.0.0.1:{http}")).await;
    assert!(error.is_not_found(), "{}", chain(&error));
    let question = told.recv().await.unwrap();
    let expected = format!("CONNECT {0} HTTP/1.1\r\nHost: {0}\r\n", listening.address);
    assert!(question.starts_with(&expected), "{question}");

    let error = get(&format!("http://127.0.0.1:{http}")).await;
    assert!(chain(&error).contains("it answers \"HTTP/1.1 407 Who are you\""), "{}", chain(&error));

    let error = get(&format!("socks5://127.0.0.1:{socks}")).await;
    assert!(error.is_not_found(), "{}", chain(&error));
}

/// The server is on loopback, where the environment's proxy is never used; the kubeconfig's is.
#[tokio::test]
async fn the_environments_proxy_is_not_for_loopback() {
    let server = server();
    let listening = server.listen_with_tls(&Authority::new()).await.unwrap();
    let directory = tempfile::tempdir().unwrap();
    let config = KubeConfig::load(&write(directory.path(), &listening, None)).unwrap();
    let proxies = ProxyEnvironment::from_variables(|_| Some("http://127.0.0.1:1".to_owned()));
    let options = ApiServerOptions { proxies, ..options() };
    let api = ApiServer::new(&config, options, Clock::system()).unwrap();
    let got = timeout(PATIENCE, api.namespaced::<ConfigMap>("default").get("x")).await.unwrap();
    assert!(got.unwrap_err().is_not_found());
}
