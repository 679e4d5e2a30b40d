//! One run of a provider's program: the request on its standard input, the answer on its standard
//! output.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use rubelet_config::GoDuration;
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::Command;
use tokio::time::timeout;

use crate::credentials::docker_config::{DockerConfig, DockerConfigEntry};

/// How long a program may take.
const LIMIT: Duration = Duration::from_secs(60);
/// How much of an answer is read.
const MAX_ANSWER: u64 = 1 << 20;
/// How much of what a program says to its standard error is passed on.
const MAX_STDERR: u64 = 1024;

/// A run gave nothing. Without what the program answered, which may be a credential.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum PluginError {
    /// It did not end well.
    #[error("error execing credential provider plugin {name} for image {image}: {problem}")]
    Run {
        /// The provider.
        name: String,
        /// For what it was asked.
        image: String,
        /// How it ended.
        problem: String,
    },
    /// Its answer is of another version.
    #[error(
        "apiVersion from credential plugin response did not match expected apiVersion:{expected}, \
         actual apiVersion:{actual}"
    )]
    Version {
        /// What was asked.
        expected: String,
        /// What was answered.
        actual: String,
    },
    /// Its answer is none.
    #[error("error decoding credential provider plugin response from stdout")]
    Undecodable,
    /// Its answer does not say for what it holds.
    #[error("credential provider plugin did not return a valid cacheKeyType: {0}")]
    CacheKeyType(String),
}

/// The program of a provider. Cheap to clone.
#[derive(Clone)]
pub(super) struct PluginProgram(Arc<Program>);

struct Program {
    name: String,
    path: PathBuf,
    api_version: String,
    args: Vec<String>,
    env: Vec<(String, String)>,
}

/// Without its arguments and environment, which may hold secrets.
impl fmt::Debug for PluginProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PluginProgram").field("path", &self.0.path).finish_non_exhaustive()
    }
}

/// What a program is asked.
#[derive(Debug)]
pub(super) struct PluginRequest {
    /// Registry and path.
    pub(super) image: String,
    /// A token of the pod's service account.
    pub(super) token: Option<SecretString>,
    /// Annotations of the pod's service account.
    pub(super) annotations: BTreeMap<String, String>,
}

/// For what an answer holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CacheKeyType {
    Image,
    Registry,
    Global,
}

/// What a program answered.
#[derive(Debug)]
pub(super) struct PluginResponse {
    pub(super) cache_key_type: CacheKeyType,
    /// How long it holds, if it says so.
    pub(super) cache_duration: Option<Duration>,
    auth: DockerConfig,
}

impl PluginResponse {
    /// The credentials, by the places that they are for.
    pub(super) fn docker_config(&self) -> DockerConfig {
        self.auth.clone()
    }

    /// One of the passwords is `secret`.
    pub(super) fn has_password(&self, secret: &SecretString) -> bool {
        self.auth.values().any(|it| it.password.expose_secret() == secret.expose_secret())
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct WireRequest<'a> {
    kind: &'a str,
    api_version: &'a str,
    image: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    service_account_token: Option<&'a str>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    service_account_annotations: &'a BTreeMap<String, String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireHeader {
    #[serde(default)]
    api_version: String,
}

/// Deliberately without `Debug`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct WireResponse {
    kind: String,
    #[serde(rename = "apiVersion")]
    _api_version: String,
    #[serde(default)]
    cache_key_type: String,
    cache_duration: Option<GoDuration>,
    auth: Option<BTreeMap<String, WireAuth>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WireAuth {
    #[serde(default)]
    username: String,
    #[serde(default)]
    password: String,
}

impl PluginProgram {
    pub(super) fn new(
        name: String,
        path: PathBuf,
        api_version: String,
        args: Vec<String>,
        env: Vec<(String, String)>,
    ) -> Self {
        Self(Arc::new(Program { name, path, api_version, args, env }))
    }

    /// The provider's name.
    pub(super) fn name(&self) -> &str {
        &self.0.name
    }

    /// Asks it once. Dropping the future ends it.
    pub(super) async fn run(&self, request: &PluginRequest) -> Result<PluginResponse, PluginError> {
        let failed = |problem: String| PluginError::Run {
            name: self.0.name.clone(),
            image: request.image.clone(),
            problem,
        };
        let answer = timeout(LIMIT, self.exchange(request))
            .await
            .map_err(|_| failed(format!("it took longer than {} s", LIMIT.as_secs())))?
            .map_err(failed)?;
        understand(&answer, &self.0.api_version)
    }

    async fn exchange(&self, request: &PluginRequest) -> Result<Vec<u8>, String> {
        let program = &self.0;
        let question = WireRequest {
            kind: "CredentialProviderRequest",
            api_version: &program.api_version,
            image: &request.image,
            service_account_token: request.token.as_ref().map(ExposeSecret::expose_secret),
            service_account_annotations: &request.annotations,
        };
        let mut question =
            serde_json::to_vec(&question).map_err(|error| format!("its request: {error}"))?;
        question.push(b'\n');
        let mut child = Command::new(&program.path)
            .args(&program.args)
            .envs(program.env.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| error.to_string())?;
        let (stdin, stdout, stderr) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let ask = async {
            if let Some(mut stdin) = stdin {
                // A program need not read what it is asked.
                let _ = stdin.write_all(&question).await;
            }
        };
        let listen = read_some(stdout, MAX_ANSWER + 1);
        let (status, (), answer, complaint) =
            tokio::join!(child.wait(), ask, listen, read_some(stderr, MAX_STDERR));
        let status = status.map_err(|error| error.to_string())?;
        if !status.success() {
            let complaint = complaint.unwrap_or_default();
            let complaint = String::from_utf8_lossy(&complaint);
            return Err(format!("{status}: {}", complaint.trim()));
        }
        let answer = answer.map_err(|error| format!("its answer: {error}"))?;
        if u64::try_from(answer.len()).unwrap_or(u64::MAX) > MAX_ANSWER {
            return Err(format!("its answer is longer than {MAX_ANSWER} bytes"));
        }
        Ok(answer)
    }
}

/// Reads up to `limit` bytes and lets the rest go by, so that the writer is not held up.
async fn read_some(
    from: Option<impl AsyncReadExt + Unpin>,
    limit: u64,
) -> std::io::Result<Vec<u8>> {
    let mut read = Vec::new();
    if let Some(mut from) = from {
        (&mut from).take(limit).read_to_end(&mut read).await?;
        tokio::io::copy(&mut from, &mut tokio::io::sink()).await?;
    }
    Ok(read)
}

fn understand(answer: &[u8], api_version: &str) -> Result<PluginResponse, PluginError> {
    let header: WireHeader =
        serde_json::from_slice(answer).map_err(|_| PluginError::Undecodable)?;
    if header.api_version != api_version {
        return Err(PluginError::Version {
            expected: api_version.to_owned(),
            actual: header.api_version,
        });
    }
    let response: WireResponse =
        serde_json::from_slice(answer).map_err(|_| PluginError::Undecodable)?;
    if response.kind != "CredentialProviderResponse" {
        return Err(PluginError::Undecodable);
    }
    let entry = |(place, auth): (String, WireAuth)| {
        let entry = DockerConfigEntry {
            username: auth.username,
            password: auth.password.into(),
            email: String::new(),
        };
        (place, entry)
    };
    Ok(PluginResponse {
        cache_key_type: match response.cache_key_type.as_str() {
            "Image" => CacheKeyType::Image,
            "Registry" => CacheKeyType::Registry,
            "Global" => CacheKeyType::Global,
            other => return Err(PluginError::CacheKeyType(other.to_owned())),
        },
        cache_duration: response.cache_duration.map(GoDuration::as_duration),
        auth: response.auth.unwrap_or_default().into_iter().map(entry).collect(),
    })
}
