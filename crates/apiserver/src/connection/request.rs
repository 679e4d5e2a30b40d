use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, USER_AGENT};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri, Version};
use http_body_util::Full;

use crate::kubeconfig::ServerUrl;

/// What all requests to one server have in common.
#[derive(Clone, Debug)]
pub(crate) struct Base {
    scheme: &'static str,
    authority: String,
    prefix: String,
    user_agent: HeaderValue,
    impersonation: Vec<(HeaderName, HeaderValue)>,
}

impl Base {
    pub(crate) fn new(
        server: &ServerUrl,
        user_agent: &str,
        impersonation: &[(HeaderName, HeaderValue)],
    ) -> Self {
        Self {
            scheme: server.scheme(),
            authority: server.authority(),
            prefix: server.prefix().to_owned(),
            // A user agent is no reason to fail.
            user_agent: HeaderValue::from_str(user_agent)
                .unwrap_or_else(|_| HeaderValue::from_static("kubelet")),
            impersonation: impersonation.to_vec(),
        }
    }
}

/// A request that can be sent again.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) method: Method,
    /// Path and query, from `/api` on.
    pub(crate) path: String,
    pub(crate) content_type: Option<HeaderValue>,
    pub(crate) body: Bytes,
}

impl Request {
    /// Nothing changes by it, so that it may be sent again when its fate is unknown.
    pub(crate) fn is_read(&self) -> bool {
        self.method == Method::GET
    }

    /// As it goes over the wire.
    pub(super) fn build(
        &self,
        base: &Base,
        authorization: Option<&HeaderValue>,
        version: Version,
    ) -> Result<http::Request<Full<Bytes>>, http::Error> {
        let Base { scheme, authority, prefix, .. } = base;
        let path = &self.path;
        let uri = match version {
            Version::HTTP_2 => format!("{scheme}://{authority}{prefix}{path}"),
            _ => format!("{prefix}{path}"),
        };
        let mut request = http::Request::new(Full::new(self.body.clone()));
        *request.method_mut() = self.method.clone();
        *request.uri_mut() = Uri::try_from(uri)?;
        *request.version_mut() = version;
        let headers: &mut HeaderMap = request.headers_mut();
        if version != Version::HTTP_2 {
            headers.insert(HOST, HeaderValue::from_str(authority)?);
        }
        headers.insert(USER_AGENT, base.user_agent.clone());
        headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
        if let Some(content_type) = &self.content_type {
            headers.insert(CONTENT_TYPE, content_type.clone());
        }
        if let Some(authorization) = authorization {
            headers.insert(AUTHORIZATION, authorization.clone());
        }
        for (name, value) in &base.impersonation {
            headers.append(name, value.clone());
        }
        Ok(request)
    }
}
