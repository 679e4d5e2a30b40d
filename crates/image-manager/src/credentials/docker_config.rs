//! Docker's configuration files, of which only the credentials count.

use std::collections::BTreeMap;

use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use secrecy::SecretString;
use serde::Deserialize;

/// As Go's decoder: what is left over in the last character does not count.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_allow_trailing_bits(true)
        .with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Credentials by the place that they are for.
pub(crate) type DockerConfig = BTreeMap<String, DockerConfigEntry>;

/// Who to be at a registry.
#[derive(Clone, Debug, Default)]
pub(crate) struct DockerConfigEntry {
    pub(crate) username: String,
    pub(crate) password: SecretString,
    pub(crate) email: String,
}

/// The two forms of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DockerConfigFormat {
    /// `config.json`, `.dockerconfigjson`: the credentials are beneath `auths`.
    Json,
    /// The older `.dockercfg`: there is nothing but the credentials.
    Legacy,
}

/// A text is no configuration of Docker's. Says where, and nothing of what is written there.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum InvalidDockerConfig {
    /// It is no JSON of the right form.
    #[error("not a Docker configuration (line {line}, column {column})")]
    Json {
        /// Where.
        line: usize,
        /// Where.
        column: usize,
    },
    /// A field `auth` is not Base64 of `user:password`.
    #[error("unable to parse auth field, must be formatted as base64(username:password)")]
    Auth,
}

#[derive(Deserialize)]
struct WireFile {
    auths: Option<BTreeMap<String, Option<WireEntry>>>,
}

/// Deliberately without `Debug`.
#[derive(Default, Deserialize)]
struct WireEntry {
    username: Option<String>,
    password: Option<String>,
    email: Option<String>,
    auth: Option<String>,
}

/// Reads a file's contents.
pub(crate) fn parse_docker_config(
    contents: &[u8],
    format: DockerConfigFormat,
) -> Result<DockerConfig, InvalidDockerConfig> {
    // Not the parser's own text, which may quote a password.
    let invalid = |error: serde_json::Error| InvalidDockerConfig::Json {
        line: error.line(),
        column: error.column(),
    };
    let entries = match format {
        DockerConfigFormat::Json => {
            serde_json::from_slice::<WireFile>(contents).map_err(invalid)?.auths
        }
        DockerConfigFormat::Legacy => serde_json::from_slice(contents).map_err(invalid)?,
    };
    entries
        .unwrap_or_default()
        .into_iter()
        .map(|(place, entry)| Ok((place, entry.unwrap_or_default().decode()?)))
        .collect()
}

impl WireEntry {
    fn decode(self) -> Result<DockerConfigEntry, InvalidDockerConfig> {
        let email = self.email.unwrap_or_default();
        let mut text = self.auth.unwrap_or_default();
        if text.is_empty() {
            return Ok(DockerConfigEntry {
                username: self.username.unwrap_or_default(),
                password: self.password.unwrap_or_default().into(),
                email,
            });
        }
        text.retain(|c| !matches!(c, '\r' | '\n'));
        let decoded = BASE64.decode(&text).map_err(|_| InvalidDockerConfig::Auth)?;
        let decoded = str::from_utf8(&decoded).map_err(|_| InvalidDockerConfig::Auth)?;
        let (username, password) = decoded.split_once(':').ok_or(InvalidDockerConfig::Auth)?;
        Ok(DockerConfigEntry { username: username.to_owned(), password: password.into(), email })
    }
}

#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret;

    use super::*;

    fn parse(contents: &str, format: DockerConfigFormat) -> Result<Vec<String>, String> {
        let config =
            parse_docker_config(contents.as_bytes(), format).map_err(|error| error.to_string())?;
        Ok(config
            .iter()
            .map(|(place, entry)| {
                format!("{place} {}:{}", entry.username, entry.password.expose_secret())
            })
            .collect())
    }

    #[test]
    fn both_forms_are_read() {
        for (case, entry, expected) in [
            ("auth", r#"{"auth": "dXNlcjpwYXNzd29yZA=="}"#, "user:password"),
            ("auth without padding", r#"{"auth": "dXNlcjpwYXNzd29yZA"}"#, "user:password"),
            ("auth in lines", r#"{"auth": "dXNlcjpw\nYXNzd29yZA==\n"}"#, "user:password"),
            ("a colon in the password", r#"{"auth": "YTpiOmM="}"#, "a:b:c"),
            ("in clear", r#"{"username": "u", "password": "p", "email": "e"}"#, "u:p"),
            (
                "auth counts more",
                r#"{"username": "u", "password": "p", "auth": "dXNlcjpwYXNzd29yZA=="}"#,
                "user:password",
            ),
            ("unknown fields", r#"{"username": "u", "identitytoken": "x"}"#, "u:"),
            ("nothing", "null", ":"),
        ] {
            let expected = Ok(vec![format!("r.io {expected}")]);
            let legacy = format!(r#"{{"r.io": {entry}}}"#);
            assert_eq!(parse(&legacy, DockerConfigFormat::Legacy), expected, "{case}");
            let json =
                format!(r#"{{"auths": {legacy}, "credHelpers": {{}}, "HttpHeaders": {{}}}}"#);
            assert_eq!(parse(&json, DockerConfigFormat::Json), expected, "{case}");
        }
        assert_eq!(parse("{}", DockerConfigFormat::Json), Ok(Vec::new()));
        assert_eq!(parse("{}", DockerConfigFormat::Legacy), Ok(Vec::new()));
    }

    #[test]
    fn what_is_wrong_is_said_without_a_secret() {
        for (entry, expected) in [
            (r#"{"password": 4711}"#, "not a Docker configuration (line 1, column 36)"),
            (r#"{"auth": "c2VjcmV0"}"#, InvalidDockerConfig::Auth.to_string().as_str()),
            (r#"{"auth": "?"}"#, InvalidDockerConfig::Auth.to_string().as_str()),
            (r#""t0ps3cret""#, "not a Docker configuration (line 1, column 30)"),
        ] {
            let text = format!(r#"{{"auths": {{"r.io": {entry}}}}}"#);
            assert_eq!(parse(&text, DockerConfigFormat::Json), Err(expected.to_owned()), "{entry}");
        }
        let entry = DockerConfigEntry { password: "t0ps3cret".into(), ..Default::default() };
        assert!(!format!("{entry:?}").contains("t0ps3cret"));
    }
}
