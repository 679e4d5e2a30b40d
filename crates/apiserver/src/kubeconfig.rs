//! What a kubeconfig says, complete: every file it names has been read and checked.

mod client_certificate;
mod error;
mod material;
mod rotated;
mod server_url;
mod written;

use std::fmt;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64::Engine;
use http::{HeaderName, HeaderValue, Uri};
use kube::config::{AuthInfo, Cluster, ExecAuthCluster, ExecConfig, Kubeconfig};
use rustls::pki_types::CertificateDer;
use secrecy::{ExposeSecret, SecretString};

pub use client_certificate::ClientCertificate;
pub use error::KubeConfigError;
pub(crate) use material::{Identity, Roots};
pub(crate) use rotated::Origin;
pub use rotated::{InitialCertificate, InlineCertificate};
pub(crate) use server_url::ServerUrl;

/// A kubeconfig, ready for use: its current context, and the contents of all files that this names.
///
/// Relative paths in it start at its own directory. Secrets do not show in its `Debug` text.
#[derive(Clone)]
pub struct KubeConfig {
    inner: Arc<Inner>,
}

struct Inner {
    origin: Origin,
    server: ServerUrl,
    trust: Trust,
    server_name: Option<String>,
    identity: Option<Identity>,
    authorization: Authorization,
    impersonation: Vec<(HeaderName, HeaderValue)>,
    proxy: Option<Uri>,
    certificate_authority: CertificateAuthority,
    initial_certificate: InitialCertificate,
    fingerprint: u64,
}

/// Which server certificates are taken.
#[derive(Clone, Debug)]
pub(crate) enum Trust {
    /// Those that a known authority signed.
    Roots(Roots),
    /// All: `insecure-skip-tls-verify`.
    Anybody,
}

/// How requests say who asks, beside the client certificate.
#[derive(Clone, Debug)]
pub(crate) enum Authorization {
    /// They do not.
    None,
    /// A token that never changes.
    Token(SecretString),
    /// The token in a file, read again and again. The one that was in it at first stays for times
    /// when the file cannot be read.
    TokenFile { file: PathBuf, token: SecretString },
    /// User name and password.
    Basic { user: String, password: SecretString },
    /// A program that is asked.
    Exec(Arc<ExecPlugin>),
}

/// A credential plugin, as `users[].exec` describes it.
#[derive(Clone, Debug)]
pub(crate) struct ExecPlugin {
    /// `client.authentication.k8s.io/v1` or an older version.
    pub(crate) api_version: String,
    pub(crate) command: PathBuf,
    pub(crate) arguments: Vec<String>,
    pub(crate) environment: Vec<(String, String)>,
    pub(crate) install_hint: String,
    /// What the plugin is told about the cluster, if it wants to know.
    pub(crate) cluster: Option<ExecAuthCluster>,
}

/// The authority as the kubeconfig names it, for another kubeconfig of the same cluster.
#[derive(Clone, Debug)]
enum CertificateAuthority {
    None,
    File(PathBuf),
    Data(String),
}

impl KubeConfig {
    /// Reads the kubeconfig at `path` and every file that its current context names. Blocks.
    ///
    /// # Errors
    ///
    /// What is missing, unreadable or wrong, with the path of the file.
    pub fn load(path: &Path) -> Result<Self, KubeConfigError> {
        Self::read(path, None)
    }

    fn read(path: &Path, rotated: Option<&Path>) -> Result<Self, KubeConfigError> {
        let mut reader = Reader { path, hasher: DefaultHasher::new() };
        let text = fs::read(path)
            .map_err(|source| KubeConfigError::Read { path: path.to_owned(), source })?;
        text.hash(&mut reader.hasher);
        let parse_error = |source| KubeConfigError::Parse { path: path.to_owned(), source };
        let text = str::from_utf8(&text).map_err(|error| parse_error(error.into()))?;
        let document = Kubeconfig::from_yaml(text).map_err(|error| parse_error(error.into()))?;
        let (mut cluster, user) = reader.current_context(document)?;

        let certificate_authority = reader.certificate_authority(&mut cluster);
        let wants_tls = cluster.insecure_skip_tls_verify == Some(true)
            || !matches!(certificate_authority, CertificateAuthority::None)
            || user.client_certificate.is_some()
            || user.client_certificate_data.is_some();
        let server = ServerUrl::parse(cluster.server.as_deref().unwrap_or_default(), wants_tls)
            .map_err(|problem| {
                reader.bad_field("server", cluster.server.as_deref().unwrap_or_default(), problem)
            })?;
        let trust = reader.trust(&cluster, &certificate_authority, &server)?;
        let identity = reader.identity_or_rotated(&user, rotated)?;
        let initial_certificate = reader.initial_certificate(&user)?;
        let impersonation = reader.impersonation(&user)?;
        let proxy = reader.proxy(&cluster)?;
        let server_name = cluster.tls_server_name.clone().filter(|name| !name.is_empty());
        let authorization = reader.authorization(user, &cluster)?;
        let fingerprint = reader.hasher.finish();
        let origin = Origin { path: path.to_owned(), rotated: rotated.map(Path::to_path_buf) };
        let inner = Inner {
            origin,
            server,
            trust,
            server_name,
            identity,
            authorization,
            impersonation,
            proxy,
            certificate_authority,
            initial_certificate,
            fingerprint,
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Where it was read.
    pub fn path(&self) -> &Path {
        &self.inner.origin.path
    }

    /// The server's address, such as `https://10.0.0.1:6443`.
    pub fn server(&self) -> String {
        self.inner.server.to_string()
    }

    /// The client certificate that it names, leaf first, without what a plugin would give; empty if
    /// it names none.
    pub fn client_certificates(&self) -> &[CertificateDer<'static>] {
        self.inner.identity.as_ref().map_or(&[], Identity::chain)
    }

    pub(crate) fn server_url(&self) -> &ServerUrl {
        &self.inner.server
    }

    pub(crate) fn trust(&self) -> &Trust {
        &self.inner.trust
    }

    pub(crate) fn server_name(&self) -> Option<&str> {
        self.inner.server_name.as_deref()
    }

    pub(crate) fn identity(&self) -> Option<&Identity> {
        self.inner.identity.as_ref()
    }

    pub(crate) fn authorization(&self) -> &Authorization {
        &self.inner.authorization
    }

    pub(crate) fn impersonation(&self) -> &[(HeaderName, HeaderValue)] {
        &self.inner.impersonation
    }

    pub(crate) fn proxy(&self) -> Option<&Uri> {
        self.inner.proxy.as_ref()
    }

    /// Differs when anything differs that was read: the kubeconfig, or a file that it names. Token
    /// files do not count, since a new token needs no new connection.
    pub(crate) fn fingerprint(&self) -> u64 {
        self.inner.fingerprint
    }
}

impl fmt::Debug for KubeConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KubeConfig")
            .field("origin", &self.inner.origin)
            .field("server", &self.inner.server)
            .field("server_name", &self.inner.server_name)
            .field("authorization", &self.inner.authorization)
            .field("proxy", &self.inner.proxy.as_ref().and_then(Uri::host))
            .finish_non_exhaustive()
    }
}

/// What a field stands for, and where it is from.
type Content = (Vec<u8>, String);

/// Reads on behalf of one kubeconfig.
struct Reader<'a> {
    path: &'a Path,
    hasher: DefaultHasher,
}

impl Reader<'_> {
    fn missing(&self, what: impl Into<String>) -> KubeConfigError {
        KubeConfigError::Missing { path: self.path.to_owned(), what: what.into() }
    }

    fn bad_field(
        &self,
        field: &'static str,
        value: &str,
        problem: impl Into<String>,
    ) -> KubeConfigError {
        KubeConfigError::BadField {
            path: self.path.to_owned(),
            field,
            value: value.to_owned(),
            problem: problem.into(),
        }
    }

    fn bad_pem(&self, origin: impl Into<String>, problem: impl Into<String>) -> KubeConfigError {
        KubeConfigError::BadPem {
            path: self.path.to_owned(),
            origin: origin.into(),
            problem: problem.into(),
        }
    }

    fn current_context(
        &self,
        document: Kubeconfig,
    ) -> Result<(Cluster, AuthInfo), KubeConfigError> {
        let name = document
            .current_context
            .filter(|name| !name.is_empty())
            .ok_or_else(|| self.missing("no current-context"))?;
        let context = document
            .contexts
            .into_iter()
            .find(|context| context.name == name)
            .and_then(|context| context.context)
            .ok_or_else(|| self.missing(format!("there is no context {name:?}")))?;
        let cluster = document
            .clusters
            .into_iter()
            .find(|cluster| cluster.name == context.cluster)
            .and_then(|cluster| cluster.cluster)
            .ok_or_else(|| {
                self.missing(format!("context {name:?}: there is no cluster {:?}", context.cluster))
            })?;
        let user = match context.user.filter(|user| !user.is_empty()) {
            None => AuthInfo::default(),
            Some(user_name) => document
                .auth_infos
                .into_iter()
                .find(|user| user.name == user_name)
                .map(|user| user.auth_info.unwrap_or_default())
                .ok_or_else(|| {
                    self.missing(format!("context {name:?}: there is no user {user_name:?}"))
                })?,
        };
        if cluster.server.as_ref().is_none_or(String::is_empty) {
            return Err(self.missing(format!("cluster {:?} has no server", context.cluster)));
        }
        Ok((cluster, user))
    }

    /// Paths start at the kubeconfig's directory.
    fn resolve(&self, path: &str) -> PathBuf {
        self.path.parent().unwrap_or(Path::new("")).join(path)
    }

    fn read_file(&mut self, field: &'static str, file: &Path) -> Result<Vec<u8>, KubeConfigError> {
        let content = fs::read(file).map_err(|source| KubeConfigError::ReadFile {
            path: self.path.to_owned(),
            field,
            file: file.to_owned(),
            source,
        })?;
        content.hash(&mut self.hasher);
        Ok(content)
    }

    /// Data goes before a file, as everywhere in a kubeconfig. With the content comes where it is
    /// from.
    fn data_or_file(
        &mut self,
        data: Option<&str>,
        data_field: &'static str,
        file: Option<&str>,
        file_field: &'static str,
    ) -> Result<Option<Content>, KubeConfigError> {
        if let Some(data) = data.filter(|data| !data.is_empty()) {
            let content = self.base64(data_field, data)?;
            return Ok(Some((content, data_field.to_owned())));
        }
        let Some(file) = file.filter(|file| !file.is_empty()) else { return Ok(None) };
        let file = self.resolve(file);
        let content = self.read_file(file_field, &file)?;
        Ok(Some((content, format!("{file_field} {}", file.display()))))
    }

    fn base64(&self, field: &'static str, data: &str) -> Result<Vec<u8>, KubeConfigError> {
        // YAML folds long lines: white space within is of no meaning.
        let compact: String = data.split_ascii_whitespace().collect();
        base64::engine::general_purpose::STANDARD
            .decode(compact)
            .map_err(|source| KubeConfigError::Base64 { path: self.path.to_owned(), field, source })
    }

    /// Also makes the path in `cluster` absolute, for who passes the cluster on.
    fn certificate_authority(&self, cluster: &mut Cluster) -> CertificateAuthority {
        if let Some(data) = cluster.certificate_authority_data.as_ref().filter(|d| !d.is_empty()) {
            return CertificateAuthority::Data(data.split_ascii_whitespace().collect());
        }
        let Some(file) = cluster.certificate_authority.as_ref().filter(|file| !file.is_empty())
        else {
            return CertificateAuthority::None;
        };
        let file = self.resolve(file);
        cluster.certificate_authority = Some(file.to_string_lossy().into_owned());
        CertificateAuthority::File(file)
    }

    fn trust(
        &mut self,
        cluster: &Cluster,
        authority: &CertificateAuthority,
        server: &ServerUrl,
    ) -> Result<Trust, KubeConfigError> {
        let is_insecure = cluster.insecure_skip_tls_verify == Some(true);
        let (pem, origin) = match authority {
            CertificateAuthority::None if is_insecure => return Ok(Trust::Anybody),
            CertificateAuthority::None if !server.is_tls() => {
                return Ok(Trust::Roots(Roots::none()));
            }
            CertificateAuthority::None => {
                let roots = Roots::of_the_system()
                    .ok_or_else(|| KubeConfigError::NoSystemRoots { path: self.path.to_owned() })?;
                return Ok(Trust::Roots(roots));
            }
            CertificateAuthority::File(file) => (
                self.read_file("certificate-authority", file)?,
                format!("certificate-authority {}", file.display()),
            ),
            CertificateAuthority::Data(data) => (
                self.base64("certificate-authority-data", data)?,
                "certificate-authority-data".to_owned(),
            ),
        };
        if is_insecure {
            return Err(self.missing(
                "certificate-authority and insecure-skip-tls-verify contradict each other",
            ));
        }
        let roots = Roots::from_pem(&pem).map_err(|problem| self.bad_pem(origin, problem))?;
        Ok(Trust::Roots(roots))
    }

    fn certificate_and_key(
        &mut self,
        user: &AuthInfo,
    ) -> Result<(Option<Content>, Option<Content>), KubeConfigError> {
        let certificate = self.data_or_file(
            user.client_certificate_data.as_deref(),
            "client-certificate-data",
            user.client_certificate.as_deref(),
            "client-certificate",
        )?;
        let key = self.data_or_file(
            user.client_key_data.as_ref().map(ExposeSecret::expose_secret),
            "client-key-data",
            user.client_key.as_deref(),
            "client-key",
        )?;
        Ok((certificate, key))
    }

    fn identity(&mut self, user: &AuthInfo) -> Result<Option<Identity>, KubeConfigError> {
        match self.certificate_and_key(user)? {
            (None, None) => Ok(None),
            (None, Some(_)) => Err(self.missing("client-key without client-certificate")),
            (Some(_), None) => Err(self.missing("client-certificate without client-key")),
            (Some((certificate, certificate_origin)), Some((key, key_origin))) => {
                let identity = Identity::from_pem(&certificate, &key).map_err(|error| {
                    let origin = match error.part {
                        material::Part::Certificate => certificate_origin,
                        material::Part::Key => key_origin,
                    };
                    self.bad_pem(origin, error.problem)
                })?;
                Ok(Some(identity))
            }
        }
    }

    fn impersonation(
        &self,
        user: &AuthInfo,
    ) -> Result<Vec<(HeaderName, HeaderValue)>, KubeConfigError> {
        let mut headers = Vec::new();
        let mut add = |name: &str, field: &'static str, text: &str| {
            let name = HeaderName::try_from(name)
                .map_err(|error| self.bad_field(field, name, error.to_string()))?;
            let value = HeaderValue::from_str(text)
                .map_err(|error| self.bad_field(field, text, error.to_string()))?;
            headers.push((name, value));
            Ok::<_, KubeConfigError>(())
        };
        if let Some(user) = user.impersonate.as_ref().filter(|user| !user.is_empty()) {
            add("impersonate-user", "as", user)?;
        }
        if let Some(uid) = user.impersonate_uid.as_ref().filter(|uid| !uid.is_empty()) {
            add("impersonate-uid", "as-uid", uid)?;
        }
        for group in user.impersonate_groups.iter().flatten() {
            add("impersonate-group", "as-groups", group)?;
        }
        for (key, values) in user.impersonate_user_extra.iter().flatten() {
            let name = format!("impersonate-extra-{}", server_url::escape_header_key(key));
            for value in values {
                add(&name, "as-user-extra", value)?;
            }
        }
        Ok(headers)
    }

    fn proxy(&self, cluster: &Cluster) -> Result<Option<Uri>, KubeConfigError> {
        let Some(proxy) = cluster.proxy_url.as_ref().filter(|proxy| !proxy.is_empty()) else {
            return Ok(None);
        };
        // A password may stand in it.
        let shown = proxy.rsplit_once('@').map_or(proxy.as_str(), |(_, host)| host);
        let url: Uri = proxy
            .parse()
            .map_err(|error| self.bad_field("proxy-url", shown, format!("{error}")))?;
        match (url.scheme_str(), url.host()) {
            (Some("http" | "https" | "socks5"), Some(_)) => Ok(Some(url)),
            (_, None) => Err(self.bad_field("proxy-url", shown, "it has no host")),
            _ => Err(self.bad_field(
                "proxy-url",
                shown,
                "its scheme has to be http, https or socks5",
            )),
        }
    }

    fn authorization(
        &mut self,
        user: AuthInfo,
        cluster: &Cluster,
    ) -> Result<Authorization, KubeConfigError> {
        let token = user.token.filter(|token| !token.expose_secret().is_empty());
        if let Some(file) = user.token_file.filter(|file| !file.is_empty()) {
            let file = self.resolve(&file);
            let content = fs::read_to_string(&file);
            let token = match (content, token) {
                (Ok(content), _) => SecretString::from(content.trim().to_owned()),
                (Err(_), Some(token)) => token,
                (Err(source), None) => {
                    return Err(KubeConfigError::ReadFile {
                        path: self.path.to_owned(),
                        field: "tokenFile",
                        file,
                        source,
                    });
                }
            };
            return Ok(Authorization::TokenFile { file, token });
        }
        if let Some(token) = token {
            return Ok(Authorization::Token(token));
        }
        if let Some(name) = user.username.filter(|name| !name.is_empty()) {
            let password = user.password.unwrap_or_default();
            return Ok(Authorization::Basic { user: name, password });
        }
        if let Some(provider) = user.auth_provider {
            return Err(self.bad_field(
                "auth-provider",
                &provider.name,
                "Kubernetes has removed these; use exec",
            ));
        }
        match user.exec {
            Some(exec) => Ok(Authorization::Exec(Arc::new(self.exec_plugin(exec, cluster)?))),
            None => Ok(Authorization::None),
        }
    }

    fn exec_plugin(
        &self,
        exec: ExecConfig,
        cluster: &Cluster,
    ) -> Result<ExecPlugin, KubeConfigError> {
        let command = exec
            .command
            .filter(|command| !command.is_empty())
            .ok_or_else(|| self.missing("exec has no command"))?;
        // A bare name is looked up in PATH; anything with a slash is a path.
        let command = if command.contains('/') { self.resolve(&command) } else { command.into() };
        let api_version = exec
            .api_version
            .filter(|version| !version.is_empty())
            .ok_or_else(|| self.missing("exec has no apiVersion"))?;
        if !matches!(
            api_version.as_str(),
            "client.authentication.k8s.io/v1" | "client.authentication.k8s.io/v1beta1"
        ) {
            return Err(self.bad_field("exec.apiVersion", &api_version, "it is not known"));
        }
        if exec.interactive_mode == Some(kube::config::ExecInteractiveMode::Always) {
            return Err(self.bad_field(
                "exec.interactiveMode",
                "Always",
                "a node agent has no terminal",
            ));
        }
        let environment = exec.env.unwrap_or_default().into_iter().filter_map(|mut variable| {
            let name = variable.remove("name")?;
            Some((name, variable.remove("value").unwrap_or_default()))
        });
        let cluster = match exec.provide_cluster_info {
            false => None,
            true => Some(ExecAuthCluster::try_from(cluster).map_err(|error| {
                self.bad_field("exec.provideClusterInfo", "true", error.to_string())
            })?),
        };
        Ok(ExecPlugin {
            api_version,
            command,
            arguments: exec.args.unwrap_or_default(),
            environment: environment.collect(),
            install_hint: exec.install_hint.unwrap_or_default(),
            cluster,
        })
    }
}

#[cfg(test)]
mod tests;
