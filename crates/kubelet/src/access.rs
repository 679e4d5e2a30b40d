//! Who may use the node's API, as the API server says.

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec};
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use rubelet_apiserver::{ApiError, ApiServer};
use rubelet_config::Effective;
use rubelet_server::{
    AccessQuestion, AccessReviews, AccessSettings, Authorization, ReviewError, User,
};

/// Authentication and authorisation, as configured.
pub(crate) fn access_settings(effective: &Effective) -> AccessSettings {
    let (authentication, authorization) =
        (&effective.config.authentication, &effective.config.authorization);
    AccessSettings {
        anonymous: authentication.anonymous.enabled,
        client_certificates: !authentication.x509.client_ca_file.is_empty(),
        tokens: authentication
            .webhook
            .enabled
            .then(|| authentication.webhook.cache_ttl.as_duration()),
        authorization: match authorization.mode.as_str() {
            "AlwaysAllow" => Authorization::AlwaysAllow,
            _ => Authorization::Webhook {
                authorized_ttl: authorization.webhook.cache_authorized_ttl.as_duration(),
                unauthorized_ttl: authorization.webhook.cache_unauthorized_ttl.as_duration(),
            },
        },
    }
}

/// Asks by `TokenReview` and `SubjectAccessReview`.
#[derive(Clone, Debug)]
pub(crate) struct ApiServerReviews(pub(crate) ApiServer);

impl AccessReviews for ApiServerReviews {
    fn user_of_token(
        &self,
        token: String,
    ) -> BoxFuture<'static, Result<Option<User>, ReviewError>> {
        let api = self.0.clone();
        async move {
            let spec = TokenReviewSpec { token, audiences: None };
            let review = TokenReview { spec, ..TokenReview::default() };
            let answer = api.cluster::<TokenReview>().create(&review).await.map_err(failed)?;
            let status = answer.status.unwrap_or_default();
            if !status.authenticated.unwrap_or_default() {
                if let Some(why) = status.error.filter(|why| !why.is_empty()) {
                    tracing::debug!(why, "a token is not believed");
                }
                return Ok(None);
            }
            let user = status.user.unwrap_or_default();
            Ok(Some(User {
                name: user.username.unwrap_or_default(),
                uid: user.uid,
                groups: user.groups.unwrap_or_default(),
                extra: user.extra.unwrap_or_default(),
            }))
        }
        .boxed()
    }

    fn is_allowed(
        &self,
        question: AccessQuestion,
    ) -> BoxFuture<'static, Result<bool, ReviewError>> {
        let api = self.0.clone();
        async move {
            let AccessQuestion { user, verb, subresource, node } = question;
            let review = SubjectAccessReview {
                spec: SubjectAccessReviewSpec {
                    user: Some(user.name),
                    uid: user.uid,
                    groups: Some(user.groups),
                    extra: (!user.extra.is_empty()).then_some(user.extra),
                    resource_attributes: Some(ResourceAttributes {
                        verb: Some(verb.to_owned()),
                        version: Some("v1".to_owned()),
                        resource: Some("nodes".to_owned()),
                        subresource: Some(subresource.to_owned()),
                        name: Some(node),
                        ..ResourceAttributes::default()
                    }),
                    ..SubjectAccessReviewSpec::default()
                },
                ..SubjectAccessReview::default()
            };
            let answer =
                api.cluster::<SubjectAccessReview>().create(&review).await.map_err(failed)?;
            let status = answer.status.unwrap_or_default();
            Ok(status.allowed && !status.denied.unwrap_or_default())
        }
        .boxed()
    }
}

fn failed(error: ApiError) -> ReviewError {
    ReviewError { is_passing: error.is_retriable(), code: error.code(), text: error.to_string() }
}
