//! Credential plugins: programs that print an `ExecCredential`.

use std::process::Stdio;
use std::time::Duration;

use http::HeaderValue;
use jiff::Timestamp;
use secrecy::SecretString;
use serde::{Deserialize, Serialize};
use tokio::process::Command;
use tokio::time::timeout;

use super::{CredentialsError, bearer};
use crate::kubeconfig::{ExecPlugin, Identity};

/// How long a plugin may take.
const LIMIT: Duration = Duration::from_secs(60);
/// How much of what a failed plugin said is passed on.
const MAX_STDERR: usize = 1024;

/// What a plugin gave.
#[derive(Debug, Default)]
pub(super) struct ExecCredential {
    pub(super) header: Option<HeaderValue>,
    pub(super) identity: Option<Identity>,
    expires: Option<Timestamp>,
}

impl ExecCredential {
    pub(super) fn is_expired(&self, now: Timestamp) -> bool {
        self.expires.is_some_and(|expires| expires <= now)
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Question<'a> {
    kind: &'a str,
    api_version: &'a str,
    spec: QuestionSpec<'a>,
}

#[derive(Serialize)]
struct QuestionSpec<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    cluster: Option<&'a kube::config::ExecAuthCluster>,
    interactive: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Answer {
    #[serde(default)]
    kind: String,
    #[serde(default)]
    api_version: String,
    status: Option<AnswerStatus>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct AnswerStatus {
    expiration_timestamp: Option<Timestamp>,
    #[serde(default)]
    token: String,
    #[serde(default)]
    client_certificate_data: String,
    #[serde(default)]
    client_key_data: String,
}

/// Asks the plugin once.
pub(super) async fn run(plugin: &ExecPlugin) -> Result<ExecCredential, CredentialsError> {
    let answer_error =
        |problem: String| CredentialsError::Answer { command: plugin.command.clone(), problem };
    let question = Question {
        kind: "ExecCredential",
        api_version: &plugin.api_version,
        spec: QuestionSpec { cluster: plugin.cluster.as_ref(), interactive: false },
    };
    let question = serde_json::to_string(&question)
        .map_err(|error| answer_error(format!("its question cannot be written: {error}")))?;
    let child = Command::new(&plugin.command)
        .args(&plugin.arguments)
        .envs(plugin.environment.iter().map(|(name, value)| (name, value)))
        .env("KUBERNETES_EXEC_INFO", question)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(|source| CredentialsError::Start {
            command: plugin.command.clone(),
            install_hint: plugin.install_hint.clone(),
            source,
        })?;
    let output = timeout(LIMIT, child.wait_with_output())
        .await
        .map_err(|_| CredentialsError::TooSlow { command: plugin.command.clone(), limit: LIMIT })?
        .map_err(|error| answer_error(format!("its output cannot be read: {error}")))?;
    if !output.status.success() {
        let stderr = &output.stderr[..output.stderr.len().min(MAX_STDERR)];
        return Err(CredentialsError::Failed {
            command: plugin.command.clone(),
            status: output.status,
            stderr: String::from_utf8_lossy(stderr).trim().to_owned(),
        });
    }
    // Not the parser's text: it may quote the token.
    let answer: Answer = serde_json::from_slice(&output.stdout).map_err(|error| {
        let (line, column) = (error.line(), error.column());
        answer_error(format!("its output is no ExecCredential (line {line}, column {column})"))
    })?;
    understand(answer, plugin).map_err(answer_error)
}

fn understand(answer: Answer, plugin: &ExecPlugin) -> Result<ExecCredential, String> {
    if answer.kind != "ExecCredential" || answer.api_version != plugin.api_version {
        return Err(format!(
            "it answers with {} {} instead of {} ExecCredential",
            answer.api_version, answer.kind, plugin.api_version
        ));
    }
    let status = answer.status.ok_or("its answer has no status")?;
    let identity = match (status.client_certificate_data.as_str(), status.client_key_data.as_str())
    {
        ("", "") => None,
        ("", _) | (_, "") => {
            return Err("it gives only one of client certificate and key".to_owned());
        }
        (certificate, key) => Some(
            Identity::from_pem(certificate.as_bytes(), key.as_bytes())
                .map_err(|error| format!("its client certificate or key: {}", error.problem))?,
        ),
    };
    let header = match status.token.trim() {
        "" => None,
        token => {
            Some(bearer(&SecretString::from(token.to_owned())).map_err(|error| error.to_string())?)
        }
    };
    if header.is_none() && identity.is_none() {
        return Err("it gives neither a token nor a client certificate".to_owned());
    }
    Ok(ExecCredential { header, identity, expires: status.expiration_timestamp })
}
