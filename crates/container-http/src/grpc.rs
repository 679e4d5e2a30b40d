//! `grpc.health.v1.Health/Check`, which is one method with two small messages.

use std::time::Duration;

use http::Uri;
use http::uri::PathAndQuery;
use hyper_util::rt::TokioIo;
use rubelet_types::format_go_duration;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout_at};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;

use crate::dial::{DialError, dial};
use crate::http_get::ContainerClient;
use crate::outcome::ProbeOutcome;
use crate::url::join_host_port;

/// How long to wait before dialling again within the time of one probe, as gRPC clients do.
const REDIAL: Duration = Duration::from_secs(1);

#[derive(Clone, PartialEq, prost::Message)]
struct HealthCheckRequest {
    #[prost(string, tag = "1")]
    service: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct HealthCheckResponse {
    #[prost(int32, tag = "1")]
    status: i32,
}

/// The value of `HealthCheckResponse.status` that means well.
const SERVING: i32 = 1;

fn status_name(status: i32) -> String {
    match status {
        0 => "UNKNOWN".to_owned(),
        SERVING => "SERVING".to_owned(),
        2 => "NOT_SERVING".to_owned(),
        3 => "SERVICE_UNKNOWN".to_owned(),
        other => other.to_string(),
    }
}

impl ContainerClient {
    /// One attempt of a `grpc` probe: asks the health service on `host:port`, in plain text, for
    /// `service` (empty: for the server itself). Only `SERVING` is success.
    pub async fn grpc_probe(
        &self,
        host: &str,
        port: u16,
        service: &str,
        time: Duration,
    ) -> ProbeOutcome {
        let deadline = Instant::now() + time;
        let authority = join_host_port(host, port);
        let within = format_go_duration(time);
        let stream = match dial_until(host, port, deadline).await {
            Ok(stream) => stream,
            Err(DialError::Timeout { .. }) => {
                return ProbeOutcome::Failure(format!(
                    "timeout: failed to connect service {authority:?} within {within}: context \
                     deadline exceeded"
                ));
            }
            Err(error) => {
                return ProbeOutcome::Failure(format!(
                    "error: failed to connect service at {authority:?}: {error}"
                ));
            }
        };
        match timeout_at(deadline, self.check(&authority, stream, service)).await {
            Ok(Ok(SERVING)) => ProbeOutcome::Success("service healthy".to_owned()),
            Ok(Ok(status)) => ProbeOutcome::Failure(format!(
                "service unhealthy (responded with {:?})",
                status_name(status)
            )),
            Ok(Err(status)) if status.code() == Code::Unimplemented => {
                ProbeOutcome::Failure(format!(
                    "error: this server does not implement the grpc health protocol \
                     (grpc.health.v1.Health): {}",
                    status.message()
                ))
            }
            Ok(Err(status)) if status.code() != Code::DeadlineExceeded => {
                ProbeOutcome::Failure(format!(
                    "error: health rpc probe failed: rpc error: code = {} desc = {}",
                    code_name(status.code()),
                    status.message()
                ))
            }
            Ok(Err(_)) | Err(_) => ProbeOutcome::Failure(format!(
                "timeout: health rpc did not complete within {within}"
            )),
        }
    }

    async fn check(
        &self,
        authority: &str,
        stream: TcpStream,
        service: &str,
    ) -> Result<i32, Status> {
        let channel = self.channel(authority, stream).await.map_err(|error| {
            Status::unavailable(format!("connection error: desc = \"transport: {error}\""))
        })?;
        let mut client = tonic::client::Grpc::new(channel);
        client.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
        let response = client
            .unary(
                Request::new(HealthCheckRequest { service: service.to_owned() }),
                PathAndQuery::from_static("/grpc.health.v1.Health/Check"),
                ProstCodec::<HealthCheckRequest, HealthCheckResponse>::default(),
            )
            .await?;
        Ok(response.into_inner().status)
    }

    /// A channel over `stream` alone: it never dials by itself.
    async fn channel(
        &self,
        authority: &str,
        stream: TcpStream,
    ) -> Result<Channel, tonic::transport::Error> {
        let endpoint = Endpoint::from_shared(format!("http://{authority}"))?
            .user_agent(format!("kube-probe/{}", self.version))?;
        let mut stream = Some(stream);
        endpoint
            .connect_with_connector(tower::service_fn(move |_: Uri| {
                let stream = stream.take();
                async move {
                    stream
                        .map(TokioIo::new)
                        .ok_or_else(|| std::io::Error::from(std::io::ErrorKind::NotConnected))
                }
            }))
            .await
    }
}

/// Dials again while there is time for it: a server may come up within the time of its probe.
async fn dial_until(host: &str, port: u16, deadline: Instant) -> Result<TcpStream, DialError> {
    loop {
        match dial(host, port, deadline).await {
            Err(DialError::Connect { .. }) if Instant::now() + REDIAL < deadline => {
                sleep(REDIAL).await;
            }
            result => return result,
        }
    }
}

/// The code as Go's gRPC spells it.
fn code_name(code: Code) -> String {
    match code {
        Code::Cancelled => "Canceled".to_owned(),
        Code::Ok => "OK".to_owned(),
        code => format!("{code:?}"),
    }
}
