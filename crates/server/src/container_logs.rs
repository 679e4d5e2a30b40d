//! `GET /containerLogs/{namespace}/{pod}/{container}`: what `kubectl logs` reads.

use std::error::Error;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, Query, State};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use bytes::Bytes;
use futures_util::Stream;
use futures_util::future::BoxFuture;
use http::{StatusCode, header};
use jiff::Timestamp;

use crate::routes::method_not_allowed;

pub(crate) const PATH: &str = "/containerLogs/{namespace}/{pod}/{container}";

/// Which log is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogTarget {
    /// `metadata.namespace` of the pod.
    pub namespace: String,
    /// `metadata.name` of the pod; for a static pod that of its mirror.
    pub pod: String,
    /// Name of the container, the init container or the ephemeral container.
    pub container: String,
}

/// Which of a container's streams are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LogStream {
    /// Both.
    All,
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

impl LogStream {
    /// Its name in `PodLogOptions`.
    pub fn name(self) -> &'static str {
        match self {
            Self::All => "All",
            Self::Stdout => "Stdout",
            Self::Stderr => "Stderr",
        }
    }
}

/// From when on a log is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogsSince {
    /// So many seconds before now (`sinceSeconds`).
    SecondsAgo(i64),
    /// A moment (`sinceTime`).
    Time(Timestamp),
}

/// `PodLogOptions`, as far as they mean something to a kubelet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodLogOptions {
    /// `follow`.
    pub follow: bool,
    /// `previous`: the instance before the last restart.
    pub previous: bool,
    /// `timestamps`.
    pub timestamps: bool,
    /// `tailLines`.
    pub tail_lines: Option<u64>,
    /// `limitBytes`, at least 1.
    pub limit_bytes: Option<u64>,
    /// `sinceSeconds` or `sinceTime`.
    pub since: Option<LogsSince>,
    /// `stream`, which an alpha gate guards.
    pub stream: Option<LogStream>,
}

/// What a log gives, piece by piece. It is asked for a piece when the client has taken the one before.
/// An error breaks the answer off, so that half a log is not taken for the whole.
pub type LogBytes = Pin<Box<dyn Stream<Item = Result<Bytes, Box<dyn Error + Send + Sync>>> + Send>>;

/// There is no log to be had.
#[derive(Debug, thiserror::Error)]
pub enum ContainerLogsError {
    /// The kubelet has no such pod: 404.
    #[error("pod {pod:?} does not exist")]
    NoPod {
        /// Its name.
        pod: String,
    },
    /// The pod has no such container: 404.
    #[error("container {container:?} not found in pod {pod:?}")]
    NoContainer {
        /// The container's name.
        container: String,
        /// The pod's name.
        pod: String,
    },
    /// It has no log yet, or none any more: 400 with this text.
    #[error("{0}")]
    NoLog(String),
}

/// Where logs come from.
pub trait ContainerLogs: Send + Sync + 'static {
    /// Opens the log of a container. Nothing is read before the answer is.
    fn open_log(
        &self,
        target: LogTarget,
        options: PodLogOptions,
    ) -> BoxFuture<'_, Result<LogBytes, ContainerLogsError>>;
}

pub(crate) fn routes(logs: Arc<dyn ContainerLogs>) -> Router {
    Router::new().route(PATH, get(serve).head(method_not_allowed)).with_state(logs)
}

async fn serve(
    State(logs): State<Arc<dyn ContainerLogs>>,
    Path((namespace, pod, container)): Path<(String, String, String)>,
    Query(query): Query<Vec<(String, String)>>,
) -> Response {
    let options = match PodLogOptions::parse(&query) {
        Ok(options) => options,
        Err(refusal) => return refusal.into_response(),
    };
    match logs.open_log(LogTarget { namespace, pod, container }, options).await {
        Ok(log) => ([PLAIN_TEXT], Body::from_stream(log)).into_response(),
        Err(error) => {
            let status = match &error {
                ContainerLogsError::NoPod { .. } | ContainerLogsError::NoContainer { .. } => {
                    StatusCode::NOT_FOUND
                }
                ContainerLogsError::NoLog(_) => StatusCode::BAD_REQUEST,
            };
            (status, [PLAIN_TEXT], error.to_string()).into_response()
        }
    }
}

const PLAIN_TEXT: (header::HeaderName, &str) = (header::CONTENT_TYPE, "text/plain; charset=utf-8");

/// Why a query is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum QueryRefusal {
    /// A value is none of its kind.
    Undecodable,
    /// The values make no sense, alone or together.
    Invalid,
}

impl fmt::Display for QueryRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Undecodable => r#"{"message": "Unable to decode query."}"#,
            Self::Invalid => r#"{"message": "Invalid request."}"#,
        })
    }
}

impl IntoResponse for QueryRefusal {
    fn into_response(self) -> Response {
        let status = match self {
            Self::Undecodable => StatusCode::BAD_REQUEST,
            Self::Invalid => StatusCode::UNPROCESSABLE_ENTITY,
        };
        (status, [PLAIN_TEXT], self.to_string()).into_response()
    }
}

impl PodLogOptions {
    /// Reads a query as the API's codec and validation do: the first value of a name counts, and
    /// everything is decoded before anything is judged.
    fn parse(query: &[(String, String)]) -> Result<Self, QueryRefusal> {
        let value =
            |name: &str| query.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
        // A flag is set by its name alone.
        let flag = |name: &str| {
            value(name).is_some_and(|value| value != "0" && !value.eq_ignore_ascii_case("false"))
        };
        let parse_number = |text: &str| text.parse::<i64>().map_err(|_| QueryRefusal::Undecodable);
        let number = |name: &str| value(name).map(parse_number).transpose();
        // The older name wins, and `all` means what leaving both out does.
        let tail_lines = match value("tail").filter(|tail| !tail.is_empty()) {
            Some("all") => None,
            Some(tail) => Some(parse_number(tail)?),
            None => number("tailLines")?,
        };
        let (limit_bytes, since_seconds) = (number("limitBytes")?, number("sinceSeconds")?);
        let since_time = value("sinceTime").map(since_time).transpose()?;

        let unsigned = |number: Option<i64>, least: u64| {
            let checked = number.map(|number| u64::try_from(number).ok().filter(|it| *it >= least));
            match checked {
                Some(None) => Err(QueryRefusal::Invalid),
                Some(some) => Ok(some),
                None => Ok(None),
            }
        };
        let tail_lines = unsigned(tail_lines, 0)?;
        let limit_bytes = unsigned(limit_bytes, 1)?;
        let since = match (since_seconds, since_time) {
            (Some(_), Some(_)) => return Err(QueryRefusal::Invalid),
            (Some(seconds), None) if seconds < 1 => return Err(QueryRefusal::Invalid),
            (Some(seconds), None) => Some(LogsSince::SecondsAgo(seconds)),
            (None, time) => time.flatten().map(LogsSince::Time),
        };
        let stream = match value("stream") {
            None => None,
            Some("All") => Some(LogStream::All),
            Some("Stdout") => Some(LogStream::Stdout),
            Some("Stderr") => Some(LogStream::Stderr),
            Some(_) => return Err(QueryRefusal::Invalid),
        };
        if tail_lines.is_some() && stream.is_some_and(|stream| stream != LogStream::All) {
            return Err(QueryRefusal::Invalid);
        }
        Ok(Self {
            follow: flag("follow"),
            previous: flag("previous"),
            timestamps: flag("timestamps"),
            tail_lines,
            limit_bytes,
            since,
            stream,
        })
    }
}

/// A time of the API; none for its zero.
fn since_time(text: &str) -> Result<Option<Timestamp>, QueryRefusal> {
    match text {
        "" | "null" => Ok(None),
        text => text.parse().map(Some).map_err(|_| QueryRefusal::Undecodable),
    }
}

#[cfg(test)]
mod tests {
    use axum::extract::Request;
    use futures_util::{FutureExt, StreamExt, stream};
    use http::Method;
    use http_body_util::BodyExt;
    use tower::ServiceExt;

    use super::*;

    fn parse(query: &str) -> Result<PodLogOptions, QueryRefusal> {
        let uri: http::Uri = format!("/?{query}").parse().unwrap();
        let Query(query) = Query::<Vec<(String, String)>>::try_from_uri(&uri).unwrap();
        PodLogOptions::parse(&query)
    }

    #[test]
    fn queries_are_read_as_the_api_reads_them() {
        let with = |options: PodLogOptions| Ok(options);
        let default = PodLogOptions::default;
        let follow = PodLogOptions { follow: true, ..default() };
        let tail = |lines| PodLogOptions { tail_lines: Some(lines), ..default() };
        let time = "2026-11-30T14:40:31Z".parse().unwrap();
        for (query, expected) in [
            ("", with(default())),
            ("unknown=1&container=c&pretty=true", with(default())),
            ("follow=true", with(follow.clone())),
            ("follow=", with(follow.clone())),
            ("follow=yes", with(follow)),
            ("follow=False", with(default())),
            ("follow=0&follow=true", with(default())),
            ("previous=1", with(PodLogOptions { previous: true, ..default() })),
            ("timestamps=1", with(PodLogOptions { timestamps: true, ..default() })),
            ("tailLines=0", with(tail(0))),
            ("tailLines=7&tail=5", with(tail(5))),
            ("tailLines=7&tail=", with(tail(7))),
            ("tailLines=7&tail=all", with(default())),
            ("tailLines=-1", Err(QueryRefusal::Invalid)),
            ("tailLines=", Err(QueryRefusal::Undecodable)),
            ("tail=x", Err(QueryRefusal::Undecodable)),
            ("limitBytes=1", with(PodLogOptions { limit_bytes: Some(1), ..default() })),
            ("limitBytes=0", Err(QueryRefusal::Invalid)),
            ("limitBytes=1k", Err(QueryRefusal::Undecodable)),
            (
                "sinceSeconds=3",
                with(PodLogOptions { since: Some(LogsSince::SecondsAgo(3)), ..default() }),
            ),
            ("sinceSeconds=0", Err(QueryRefusal::Invalid)),
            (
                "sinceTime=2026-11-30T15:40:31%2B01:00",
                with(PodLogOptions { since: Some(LogsSince::Time(time)), ..default() }),
            ),
            ("sinceTime=null", with(default())),
            ("sinceTime=yesterday", Err(QueryRefusal::Undecodable)),
            ("sinceSeconds=1&sinceTime=2026-11-30T14:40:31Z", Err(QueryRefusal::Invalid)),
            ("stream=Stderr", with(PodLogOptions { stream: Some(LogStream::Stderr), ..default() })),
            ("stream=stderr", Err(QueryRefusal::Invalid)),
            ("stream=Stdout&tailLines=1", Err(QueryRefusal::Invalid)),
            (
                "stream=All&tailLines=1",
                with(PodLogOptions { stream: Some(LogStream::All), ..tail(1) }),
            ),
            ("tailLines=-1&limitBytes=x", Err(QueryRefusal::Undecodable)),
        ] {
            assert_eq!(parse(query), expected, "{query}");
        }
    }

    struct Logs;

    impl ContainerLogs for Logs {
        fn open_log(
            &self,
            target: LogTarget,
            _: PodLogOptions,
        ) -> BoxFuture<'_, Result<LogBytes, ContainerLogsError>> {
            let LogTarget { pod, container, .. } = target;
            let answer = match (pod.as_str(), container.as_str()) {
                ("web", "app") => {
                    let pieces: [Result<_, Box<dyn Error + Send + Sync>>; 2] =
                        [Ok(Bytes::from("one\n")), Ok(Bytes::from("two\n"))];
                    Ok(stream::iter(pieces).boxed())
                }
                ("web", "waits") => Err(ContainerLogsError::NoLog("not yet".to_owned())),
                ("web", _) => Err(ContainerLogsError::NoContainer { container, pod }),
                _ => Err(ContainerLogsError::NoPod { pod }),
            };
            async { answer }.boxed()
        }
    }

    async fn ask(routes: Router, method: Method, path: &str) -> (u16, String) {
        let request = Request::builder().method(method).uri(path).body(Body::empty()).unwrap();
        let response = routes.oneshot(request).await.unwrap();
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn answers_are_those_of_upstream() {
        for (path, status, text) in [
            ("/containerLogs/ns/web/app", 200, "one\ntwo\n"),
            ("/containerLogs/ns/gone/app", 404, "pod \"gone\" does not exist"),
            ("/containerLogs/ns/web/other", 404, "container \"other\" not found in pod \"web\""),
            ("/containerLogs/ns/web/waits", 400, "not yet"),
            ("/containerLogs/ns/gone/app?limitBytes=0", 422, r#"{"message": "Invalid request."}"#),
            (
                "/containerLogs/ns/gone/app?limitBytes=x",
                400,
                r#"{"message": "Unable to decode query."}"#,
            ),
        ] {
            let answer = ask(routes(Arc::new(Logs)), Method::GET, path).await;
            assert_eq!(answer, (status, text.to_owned()), "{path}");
        }
        let posted = ask(routes(Arc::new(Logs)), Method::POST, "/containerLogs/ns/web/app").await;
        assert_eq!(posted.0, 405);
    }
}
