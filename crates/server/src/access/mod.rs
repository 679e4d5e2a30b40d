//! Who asks, and whether he may.

mod cache;
mod metrics;
mod review;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::{HeaderMap, HeaderValue, Method, header};
use rustls::pki_types::CertificateDer;
use x509_parser::parse_x509_certificate;

use cache::{Fingerprint, ReviewCache};
pub use metrics::AccessMetrics;
use review::Limited;
pub use review::{AccessQuestion, AccessReviews, ReviewError};

/// How long the word of somebody else on a token or a question may be kept in mind at most.
const LONGEST: Duration = Duration::from_secs(24 * 3600);

/// Begins the WebSocket sub-protocol by which browsers, which can send no other header, send a
/// token.
const TOKEN_PROTOCOL: &str = "base64url.bearer.authorization.k8s.io.";

/// Somebody who asks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct User {
    /// The user name: the common name of a client certificate, what the API server says of a token,
    /// or `system:anonymous`.
    pub name: String,
    /// What tells apart users of one name over time, if the API server says so.
    pub uid: Option<String>,
    /// The groups: the organisations of a client certificate and `system:authenticated`, or
    /// `system:unauthenticated`.
    pub groups: Vec<String>,
    /// What else the API server says of a token.
    pub extra: BTreeMap<String, Vec<String>>,
}

/// Whom everybody belongs to who is somebody.
const AUTHENTICATED: &str = "system:authenticated";

impl User {
    fn anonymous() -> Self {
        Self {
            name: "system:anonymous".to_owned(),
            groups: vec!["system:unauthenticated".to_owned()],
            ..Self::default()
        }
    }

    /// Who a client certificate, which has been verified, says its holder is; none if it names
    /// nobody.
    pub(crate) fn of_certificate(certificate: &CertificateDer<'_>) -> Option<Self> {
        let (_, certificate) = parse_x509_certificate(certificate).ok()?;
        let subject = certificate.subject();
        let name = subject.iter_common_name().last()?.as_str().ok()?;
        if name.is_empty() {
            return None;
        }
        let organisations =
            subject.iter_organization().filter_map(|it| it.as_str().ok()).map(str::to_owned);
        let user =
            Self { name: name.to_owned(), groups: organisations.collect(), ..Self::default() };
        Some(user.authenticated())
    }

    fn authenticated(mut self) -> Self {
        if !self.groups.iter().any(|group| group == AUTHENTICATED) {
            self.groups.push(AUTHENTICATED.to_owned());
        }
        self
    }
}

/// How requests are authorised (`authorization.mode`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Authorization {
    /// Everybody who is authenticated may do everything.
    AlwaysAllow,
    /// The API server decides.
    Webhook {
        /// How long a yes is kept in mind (`cacheAuthorizedTTL`).
        authorized_ttl: Duration,
        /// How long a no is (`cacheUnauthorizedTTL`).
        unauthorized_ttl: Duration,
    },
}

/// Who may ask for what on 10250, as configured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccessSettings {
    /// `authentication.anonymous.enabled`: who does not say who he is counts as
    /// `system:anonymous`.
    pub anonymous: bool,
    /// `authentication.x509.clientCAFile` is set.
    pub client_certificates: bool,
    /// `authentication.webhook.enabled`: the API server says whose a token is, and this is how
    /// long that is kept in mind (`cacheTTL`). None: tokens are not looked at.
    pub tokens: Option<Duration>,
    /// `authorization.mode`.
    pub authorization: Authorization,
}

/// Settings by which nobody can be told apart or judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AccessError {
    /// Tokens are for the API server to know, and there is none.
    #[error("no client provided, cannot use webhook authentication")]
    NobodyKnowsTokens,
    /// The API server is to decide, and there is none.
    #[error("no client provided, cannot use webhook authorization")]
    NobodyDecides,
    /// There is no way to say who one is.
    #[error("no authentication method configured")]
    NoMethod,
}

impl AccessSettings {
    /// Whether there is whom they need. A kubelet does not start otherwise, as upstream's.
    pub fn check(&self, has_api_server: bool) -> Result<(), AccessError> {
        if self.tokens.is_some() && !has_api_server {
            return Err(AccessError::NobodyKnowsTokens);
        }
        if !self.anonymous && !self.client_certificates && self.tokens.is_none() {
            return Err(AccessError::NoMethod);
        }
        if self.authorization != Authorization::AlwaysAllow && !has_api_server {
            return Err(AccessError::NobodyDecides);
        }
        Ok(())
    }
}

/// What a route is called in authorisation: subresources of the node, of which one that is allowed
/// is enough. They are tried in order.
pub(crate) type Subresources = &'static [&'static str];

/// Who may ask for what on 10250.
pub struct Access {
    settings: AccessSettings,
    node_name: String,
    reviews: Option<Limited>,
    fingerprint: Fingerprint,
    tokens: ReviewCache<Option<Arc<User>>>,
    decisions: ReviewCache<bool>,
    metrics: Arc<AccessMetrics>,
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Access").field("settings", &self.settings).finish_non_exhaustive()
    }
}

/// Why a request is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// Nobody knows who asks.
    Unauthorized,
    /// He may not; the text says what.
    Forbidden(String),
    /// Nobody can tell whether he may.
    Unknown(String),
}

impl Access {
    /// Lets in whom `settings` allow on the node `node_name`. `reviews` is the API server, if there
    /// is one.
    ///
    /// # Errors
    ///
    /// See [`AccessSettings::check`].
    pub fn new(
        settings: AccessSettings,
        node_name: impl Into<String>,
        reviews: Option<Arc<dyn AccessReviews>>,
    ) -> Result<Self, AccessError> {
        settings.check(reviews.is_some())?;
        let metrics = Arc::<AccessMetrics>::default();
        Ok(Self {
            settings,
            node_name: node_name.into(),
            reviews: reviews.map(|reviews| Limited::new(reviews, metrics.clone())),
            fingerprint: Fingerprint::default(),
            tokens: ReviewCache::default(),
            decisions: ReviewCache::default(),
            metrics,
        })
    }

    /// What is counted of questions to the API server.
    pub fn metrics(&self) -> Arc<AccessMetrics> {
        self.metrics.clone()
    }

    /// Decides on a request for a route that is called `subresources`. `certificate` is whom a
    /// client certificate names. A token is taken out of `headers`: it is nobody else's business.
    pub(crate) async fn decide(
        &self,
        certificate: Option<User>,
        method: &Method,
        subresources: Subresources,
        headers: &mut HeaderMap,
    ) -> Result<Arc<User>, Refusal> {
        let user = match certificate {
            Some(user) => Arc::new(user),
            None => self.authenticate(headers).await?,
        };
        self.authorize(&user, verb_of(method), subresources).await?;
        Ok(user)
    }

    async fn authenticate(&self, headers: &mut HeaderMap) -> Result<Arc<User>, Refusal> {
        if let Some(ttl) = self.settings.tokens
            && let Some(token) = take_token(headers).map_err(|_| Refusal::Unauthorized)?
        {
            return self.user_of_token(token, ttl).await.ok_or(Refusal::Unauthorized);
        }
        if self.settings.anonymous {
            return Ok(Arc::new(User::anonymous()));
        }
        Err(Refusal::Unauthorized)
    }

    async fn user_of_token(&self, token: String, ttl: Duration) -> Option<Arc<User>> {
        let reviews = self.reviews.as_ref()?;
        let key = self.fingerprint.of([token.as_str()]);
        let keep = |_: &Option<Arc<User>>| ttl.min(LONGEST);
        let review = || reviews.clone().user_of_token(token);
        match self.tokens.get(key, review, keep).await {
            Ok(user) => user,
            Err(error) => {
                tracing::error!(%error, "Unable to authenticate the request due to an error");
                None
            }
        }
    }

    async fn authorize(
        &self,
        user: &User,
        verb: &'static str,
        subresources: Subresources,
    ) -> Result<(), Refusal> {
        let Authorization::Webhook { authorized_ttl, unauthorized_ttl } =
            self.settings.authorization
        else {
            return Ok(());
        };
        let asked = |subresources: &dyn fmt::Display| {
            format!("(user={}, verb={verb}, resource=nodes, {subresources})", user.name)
        };
        if let Some(reviews) = &self.reviews {
            for subresource in subresources {
                let question = AccessQuestion {
                    user: user.clone(),
                    verb,
                    subresource,
                    node: self.node_name.clone(),
                };
                let key = self.fingerprint.of(question.parts());
                let keep = |allowed: &bool| {
                    if *allowed { authorized_ttl } else { unauthorized_ttl }.min(LONGEST)
                };
                let review = || reviews.clone().decide(question);
                match self.decisions.get(key, review, keep).await {
                    Ok(true) => return Ok(()),
                    Ok(false) => {}
                    Err(error) => {
                        let asked = asked(&format_args!("subresource={subresource}"));
                        tracing::error!(%error, "Authorization error {asked}");
                        return Err(Refusal::Unknown(format!("Authorization error {asked}")));
                    }
                }
            }
        }
        let all = subresources.join(" ");
        let asked = asked(&format_args!("subresource(s)=[{all}]"));
        Err(Refusal::Forbidden(format!("Forbidden {asked}\n")))
    }
}

/// The word for a method in authorisation. Others, HEAD among them, have none: only who may do
/// everything may use them.
fn verb_of(method: &Method) -> &'static str {
    match *method {
        Method::POST => "create",
        Method::GET => "get",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        _ => "",
    }
}

/// A token that nobody can have meant.
#[derive(Debug)]
struct BadToken;

/// The token of a request, if it has one: `Authorization: Bearer`, or for WebSockets a sub-protocol.
fn take_token(headers: &mut HeaderMap) -> Result<Option<String>, BadToken> {
    if let Some(value) = headers.get(header::AUTHORIZATION) {
        let value = value.to_str().map_err(|_| BadToken)?.trim();
        let (scheme, token) = value.split_once(' ').unwrap_or((value, ""));
        if scheme.eq_ignore_ascii_case("bearer") && !token.trim().is_empty() {
            let token = token.trim().to_owned();
            headers.remove(header::AUTHORIZATION);
            return Ok(Some(token));
        }
    }
    take_token_of_websocket(headers)
}

fn take_token_of_websocket(headers: &mut HeaderMap) -> Result<Option<String>, BadToken> {
    let mut tokens = Vec::new();
    let mut others = Vec::new();
    for value in headers.get_all(header::SEC_WEBSOCKET_PROTOCOL) {
        let Ok(value) = value.to_str() else { continue };
        for protocol in value.split(',').map(str::trim) {
            match protocol.strip_prefix(TOKEN_PROTOCOL) {
                Some(token) => tokens.push(token),
                None => others.push(protocol),
            }
        }
    }
    let token = match tokens.as_slice() {
        [] => return Ok(None),
        [token] => URL_SAFE_NO_PAD.decode(token).map_err(|_| BadToken)?,
        _ => return Err(BadToken),
    };
    let token = String::from_utf8(token).map_err(|_| BadToken)?;
    if token.is_empty() {
        return Ok(None);
    }
    // There has to be one to agree on, which is not the token.
    if others.is_empty() {
        return Err(BadToken);
    }
    let others = HeaderValue::from_str(&others.join(", ")).map_err(|_| BadToken)?;
    headers.insert(header::SEC_WEBSOCKET_PROTOCOL, others);
    Ok(Some(token))
}

#[cfg(test)]
mod tests;
