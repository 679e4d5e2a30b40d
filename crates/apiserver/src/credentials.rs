//! What requests carry to say who asks, kept fresh.

mod exec;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base64::Engine;
use http::HeaderValue;
use rubelet_types::Clock;
use secrecy::{ExposeSecret, SecretString};
use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::time::Instant;

use crate::kubeconfig::{Authorization, ExecPlugin, Identity};
use exec::ExecCredential;

/// There are no credentials to send.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CredentialsError {
    /// The plugin cannot be started.
    #[error("exec: executable {} failed to start{}", command.display(), hint(install_hint))]
    Start {
        command: PathBuf,
        install_hint: String,
        #[source]
        source: std::io::Error,
    },
    /// The plugin ended with an error.
    #[error("exec: executable {} failed with {status}: {stderr}", command.display())]
    Failed { command: PathBuf, status: std::process::ExitStatus, stderr: String },
    /// The plugin takes too long.
    #[error("exec: executable {} did not end within {}", command.display(), rubelet_types::format_go_duration(*limit))]
    TooSlow { command: PathBuf, limit: Duration },
    /// What the plugin says makes no sense.
    #[error("exec: executable {}: {problem}", command.display())]
    Answer { command: PathBuf, problem: String },
    /// A token that cannot stand in a header.
    #[error("the bearer token has characters that no header may have")]
    Token,
    /// The task that ran the plugin came to an end by itself.
    #[error("the credential plugin's task ended early")]
    Interrupted,
}

fn hint(install_hint: &str) -> String {
    if install_hint.is_empty() { String::new() } else { format!(" ({install_hint})") }
}

/// A token file is read again after this time.
const TOKEN_FILE_PERIOD: Duration = Duration::from_secs(10);

/// The credentials of one kubeconfig.
#[derive(Debug)]
pub(crate) struct Credentials {
    source: Source,
    /// Counts the client certificates that a plugin has given.
    identity_version: Arc<AtomicU64>,
}

#[derive(Debug)]
enum Source {
    Fixed { header: Option<HeaderValue>, identity: Option<Identity> },
    TokenFile { file: PathBuf, state: Mutex<TokenState>, identity: Option<Identity> },
    Exec { plugin: Arc<ExecPlugin>, clock: Clock, state: Arc<Mutex<Option<Arc<ExecCredential>>>> },
}

#[derive(Debug)]
struct TokenState {
    header: HeaderValue,
    read_at: Option<Instant>,
}

impl Credentials {
    pub(crate) fn new(
        authorization: &Authorization,
        identity: Option<&Identity>,
        clock: Clock,
    ) -> Result<Self, CredentialsError> {
        let identity = identity.cloned();
        let source = match authorization {
            Authorization::None => Source::Fixed { header: None, identity },
            Authorization::Token(token) => Source::Fixed { header: Some(bearer(token)?), identity },
            Authorization::Basic { user, password } => {
                let pair = format!("{user}:{}", password.expose_secret());
                let encoded = base64::engine::general_purpose::STANDARD.encode(pair);
                Source::Fixed { header: Some(sensitive("Basic", &encoded)?), identity }
            }
            Authorization::TokenFile { file, token } => Source::TokenFile {
                file: file.clone(),
                state: Mutex::new(TokenState { header: bearer(token)?, read_at: None }),
                identity,
            },
            Authorization::Exec(plugin) => {
                Source::Exec { plugin: Arc::clone(plugin), clock, state: Arc::default() }
            }
        };
        Ok(Self { source, identity_version: Arc::default() })
    }

    /// No credentials at all.
    pub(crate) fn none() -> Self {
        let source = Source::Fixed { header: None, identity: None };
        Self { source, identity_version: Arc::default() }
    }

    /// The value of `Authorization`, if requests carry one.
    pub(crate) async fn header(&self) -> Result<Option<HeaderValue>, CredentialsError> {
        match &self.source {
            Source::Fixed { header, .. } => Ok(header.clone()),
            Source::TokenFile { file, state, .. } => {
                let mut state = state.lock().await;
                if state.read_at.is_none_or(|at| at.elapsed() >= TOKEN_FILE_PERIOD) {
                    state.read_again(file).await;
                }
                Ok(Some(state.header.clone()))
            }
            Source::Exec { .. } => Ok(self.exec_credential().await?.header.clone()),
        }
    }

    /// The client certificate for new connections.
    pub(crate) async fn identity(&self) -> Result<Option<Identity>, CredentialsError> {
        match &self.source {
            Source::Fixed { identity, .. } | Source::TokenFile { identity, .. } => {
                Ok(identity.clone())
            }
            Source::Exec { .. } => Ok(self.exec_credential().await?.identity.clone()),
        }
    }

    /// Differs after a plugin has given another client certificate: older connections are to end.
    pub(crate) fn identity_version(&self) -> u64 {
        self.identity_version.load(Ordering::Acquire)
    }

    /// The server refused a request that carried `header`. Says whether there is hope that the next
    /// one carries something better.
    pub(crate) async fn refused(&self, used: Option<&HeaderValue>) -> bool {
        match &self.source {
            Source::Fixed { .. } => false,
            Source::TokenFile { file, state, .. } => {
                let mut state = state.lock().await;
                state.read_again(file).await;
                Some(&state.header) != used
            }
            Source::Exec { state, .. } => {
                let mut state = state.lock().await;
                // Somebody else may have refreshed it meanwhile.
                if state.as_ref().is_some_and(|current| current.header.as_ref() == used) {
                    *state = None;
                }
                true
            }
        }
    }

    async fn exec_credential(&self) -> Result<Arc<ExecCredential>, CredentialsError> {
        let Source::Exec { plugin, clock, state } = &self.source else {
            return Ok(Arc::default());
        };
        let state = Arc::clone(state).lock_owned().await;
        if let Some(current) = state.as_ref().filter(|current| !current.is_expired(clock.now())) {
            return Ok(Arc::clone(current));
        }
        // As a task of its own: whoever asked may give up, and the next one finds the answer.
        let version = Arc::clone(&self.identity_version);
        tokio::spawn(renew(Arc::clone(plugin), state, version))
            .await
            .map_err(|_| CredentialsError::Interrupted)?
    }
}

async fn renew(
    plugin: Arc<ExecPlugin>,
    mut state: OwnedMutexGuard<Option<Arc<ExecCredential>>>,
    identity_version: Arc<AtomicU64>,
) -> Result<Arc<ExecCredential>, CredentialsError> {
    let fresh = Arc::new(exec::run(&plugin).await?);
    let old_identity = state.as_ref().map(|old| old.identity.as_ref());
    if old_identity.is_none_or(|old| old != fresh.identity.as_ref()) {
        identity_version.fetch_add(1, Ordering::AcqRel);
    }
    *state = Some(Arc::clone(&fresh));
    Ok(fresh)
}

impl TokenState {
    /// An unreadable or empty file leaves the token as it was.
    async fn read_again(&mut self, file: &std::path::Path) {
        self.read_at = Some(Instant::now());
        match tokio::fs::read_to_string(file).await {
            Ok(text) if !text.trim().is_empty() => {
                match bearer(&SecretString::from(text.trim().to_owned())) {
                    Ok(header) => self.header = header,
                    Err(error) => tracing::warn!(file = %file.display(), %error, "token file"),
                }
            }
            Ok(_) => tracing::warn!(file = %file.display(), "the token file is empty"),
            Err(error) => {
                tracing::warn!(file = %file.display(), %error, "cannot read the token file");
            }
        }
    }
}

fn bearer(token: &SecretString) -> Result<HeaderValue, CredentialsError> {
    sensitive("Bearer", token.expose_secret().trim())
}

fn sensitive(scheme: &str, value: &str) -> Result<HeaderValue, CredentialsError> {
    let mut header =
        HeaderValue::try_from(format!("{scheme} {value}")).map_err(|_| CredentialsError::Token)?;
    header.set_sensitive(true);
    Ok(header)
}

#[cfg(test)]
mod tests;
