use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use rubelet_apiserver::{ApiErrorKind, ApiServer};
use rubelet_types::error_chain;

use crate::port::{TokenApi, TokenFailure};
use crate::token::{IssuedToken, WantedToken};

impl TokenApi for ApiServer {
    async fn request_token(&self, wanted: &WantedToken) -> Result<IssuedToken, TokenFailure> {
        let WantedToken { pod, service_account, audiences, expiration_seconds, .. } = wanted;
        let mut request = TokenRequest {
            spec: Some(TokenRequestSpec {
                audiences: Some(audiences.clone()),
                expiration_seconds: Some(*expiration_seconds),
                bound_object_ref: Some(BoundObjectReference {
                    api_version: Some("v1".to_owned()),
                    kind: Some("Pod".to_owned()),
                    name: Some(pod.name.to_string()),
                    uid: Some(pod.uid.to_string()),
                }),
            }),
            ..TokenRequest::default()
        };
        request.metadata.uid.clone_from(&wanted.service_account_uid);
        let answer = self.create_token(&pod.namespace, service_account, &request).await;
        let answer = answer.map_err(|error| match error.kind {
            // A conflict: there is another pod of that name now.
            ApiErrorKind::NotFound
            | ApiErrorKind::Invalid
            | ApiErrorKind::BadRequest
            | ApiErrorKind::Conflict => TokenFailure::Gone(error_chain(&error)),
            // Forbidden too: the server may not know yet that the pod is on this node.
            _ => TokenFailure::Unavailable(error_chain(&error)),
        })?;
        let lives_seconds = answer.spec.and_then(|spec| spec.expiration_seconds);
        let issued = answer.status.and_then(|status| {
            let expires_at = status.expiration_timestamp?.0;
            Some(IssuedToken { token: status.token?.into(), expires_at, lives_seconds })
        });
        issued.ok_or_else(|| {
            TokenFailure::Unavailable("the API server answered without a token".to_owned())
        })
    }
}
