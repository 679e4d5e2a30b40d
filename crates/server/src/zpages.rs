//! `/statusz` and `/flagz`: what this process is, for people and for tools.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use axum::response::{IntoResponse, Response};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use jiff::Timestamp;
use serde_json::{Value, json};

const WARNING: &str = "Warning: This endpoint is not meant to be machine parseable, has no \
                       formatting compatibility guarantees and is for debugging purposes only.";

const GROUP: &str = "config.k8s.io";
/// The versions of both kinds, and whether they are deprecated.
const VERSIONS: [(&str, bool); 2] = [("v1alpha1", true), ("v1beta1", false)];

/// What this process is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct About {
    /// Its version, such as `1.36.3`.
    pub version: String,
    /// Since when it runs.
    pub started: Timestamp,
    /// Now.
    pub now: Timestamp,
    /// The flags that were given, by name.
    pub flags: BTreeMap<String, String>,
}

/// How an answer is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Text,
    /// As an object of this version.
    Object {
        version: &'static str,
        is_deprecated: bool,
    },
}

impl Form {
    /// The first form that a caller accepts and that there is: text, or JSON if it says as what.
    fn accepted(headers: &HeaderMap, kind: &str) -> Option<Self> {
        let accept = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
        let accept = accept.collect::<Vec<_>>().join(",");
        if accept.trim().is_empty() {
            return Some(Self::Text);
        }
        accept.split(',').find_map(|one| {
            let mut parts = one.split(';').map(str::trim);
            match parts.next()? {
                "text/plain" | "text/*" | "*/*" => return Some(Self::Text),
                "application/json" => {}
                _ => return None,
            }
            let parameters: BTreeMap<&str, &str> =
                parts.filter_map(|part| part.split_once('=')).collect();
            let is_kind = parameters.get("as") == Some(&kind);
            let version = parameters.get("v")?;
            let (version, is_deprecated) =
                VERSIONS.into_iter().find(|(name, _)| name == version)?;
            (is_kind && parameters.get("g") == Some(&GROUP))
                .then_some(Self::Object { version, is_deprecated })
        })
    }
}

fn answer(headers: &HeaderMap, kind: &str, text: String, mut fields: Value) -> Response {
    let Some(form) = Form::accepted(headers, kind) else {
        let text = format!(
            "only the following media types are accepted: text/plain, \
             application/json;g={GROUP};v=v1beta1;as={kind}\n"
        );
        return (StatusCode::NOT_ACCEPTABLE, text).into_response();
    };
    let Form::Object { version, is_deprecated } = form else {
        return ([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], text).into_response();
    };
    fields["kind"] = json!(kind);
    fields["apiVersion"] = json!(format!("{GROUP}/{version}"));
    fields["metadata"] = json!({ "name": "kubelet" });
    let mut response = axum::Json(fields).into_response();
    if is_deprecated {
        let path = kind.to_ascii_lowercase();
        let warning = format!(
            "299 - \"This version of the {path} endpoint is deprecated. Please use a newer version.\""
        );
        if let Ok(warning) = HeaderValue::from_str(&warning) {
            response.headers_mut().insert(header::WARNING, warning);
        }
    }
    response
}

/// `/flagz`.
pub(crate) fn flagz(about: &About, headers: &HeaderMap) -> Response {
    let mut text = format!("\nkubelet flagz\n{WARNING}\n");
    for (name, value) in &about.flags {
        let _ = writeln!(text, "{name}={value}");
    }
    answer(headers, "Flagz", text, json!({ "flags": about.flags }))
}

/// `/statusz`. `paths` are the first parts of what is served beside.
pub(crate) fn statusz(about: &About, paths: &[String], headers: &HeaderMap) -> Response {
    let About { version, started, now, .. } = about;
    let up = now.duration_since(*started).as_secs().max(0);
    let (hours, minutes, seconds) = (up / 3600, up / 60 % 60, up % 60);
    let emulated: Vec<&str> = version.split('.').take(2).collect();
    let emulated = emulated.join(".");
    let text = format!(
        "\nkubelet statusz\n{WARNING}\n\nStarted: {}\nUp: {hours} hr {minutes:02} min {seconds:02} \
         sec\nBinary version: {version}\nEmulation version: {emulated}\nPaths: {}\n",
        started.strftime("%a %b %e %H:%M:%S UTC %Y"),
        paths.join(" "),
    );
    let fields = json!({
        "startTime": started.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        "uptimeSeconds": up,
        // It was not built by Go.
        "goVersion": "",
        "binaryVersion": version,
        "emulationVersion": emulated,
        "paths": paths,
    });
    answer(headers, "Statusz", text, fields)
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    fn about() -> About {
        About {
            version: "1.36.3".to_owned(),
            started: "2026-11-30T08:09:10.5Z".parse().unwrap(),
            now: "2026-11-30T10:10:13Z".parse().unwrap(),
            flags: [("v".to_owned(), "4".to_owned()), ("root-dir".to_owned(), "/r".to_owned())]
                .into(),
        }
    }

    fn accept(accept: &str) -> HeaderMap {
        HeaderMap::from_iter([(header::ACCEPT, HeaderValue::from_str(accept).unwrap())])
    }

    async fn text(response: Response) -> (u16, String) {
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn people_get_text() {
        let paths = ["/configz".to_owned(), "/pods".to_owned()];
        let expected = format!(
            "\nkubelet statusz\n{WARNING}\n\nStarted: Mon Nov 30 08:09:10 UTC 2026\nUp: 2 hr 01 min \
             02 sec\nBinary version: 1.36.3\nEmulation version: 1.36\nPaths: /configz /pods\n"
        );
        let status = text(statusz(&about(), &paths, &HeaderMap::new())).await;
        assert_eq!(status, (200, expected));
        let expected = format!("\nkubelet flagz\n{WARNING}\nroot-dir=/r\nv=4\n");
        assert_eq!(text(flagz(&about(), &accept("text/html, */*"))).await, (200, expected));
    }

    #[tokio::test]
    async fn tools_get_the_object_they_ask_for() {
        let headers = accept("application/json;v=v1beta1;g=config.k8s.io;as=Flagz");
        let response = flagz(&about(), &headers);
        assert!(!response.headers().contains_key(header::WARNING));
        let object: Value = serde_json::from_str(&text(response).await.1).unwrap();
        let expected = json!({
            "kind": "Flagz", "apiVersion": "config.k8s.io/v1beta1",
            "metadata": { "name": "kubelet" }, "flags": { "root-dir": "/r", "v": "4" },
        });
        assert_eq!(object, expected);
        let headers = accept("application/json;v=v1alpha1;g=config.k8s.io;as=Statusz");
        let response = statusz(&about(), &[], &headers);
        assert!(response.headers().contains_key(header::WARNING));
        let object: Value = serde_json::from_str(&text(response).await.1).unwrap();
        assert_eq!(object["uptimeSeconds"], 7262);
        assert_eq!(object["startTime"], "2026-11-30T08:09:10Z");
        for none in ["application/json", "application/json;v=v2;g=config.k8s.io;as=Flagz", "a/b"] {
            assert_eq!(text(flagz(&about(), &accept(none))).await.0, 406, "{none}");
        }
    }
}
