//! Events on their way to the API server.

use k8s_openapi::api::core::v1::Event;
use rubelet_apiserver::{ApiError, ApiErrorKind, ApiServer, Patch};
use rubelet_event_recorder::{EventPort, SendEventError};
use serde_json::Value;

/// The API server's lane for events.
#[derive(Debug)]
pub(crate) struct ApiEvents(pub(crate) ApiServer);

impl EventPort for ApiEvents {
    async fn create_event(&self, event: &Event) -> Result<(), SendEventError> {
        let namespace = event.metadata.namespace.as_deref().unwrap_or_default();
        match self.0.namespaced::<Event>(namespace).create(event).await {
            Ok(_) => Ok(()),
            Err(error) => Err(failure(error)),
        }
    }

    async fn patch_event(
        &self,
        namespace: &str,
        name: &str,
        patch: &Value,
    ) -> Result<(), SendEventError> {
        let patch = Patch::Strategic(patch.clone());
        match self.0.namespaced::<Event>(namespace).patch(name, &patch).await {
            Ok(_) => Ok(()),
            Err(error) => Err(failure(error)),
        }
    }
}

fn failure(error: ApiError) -> SendEventError {
    match error.kind {
        ApiErrorKind::NotFound => SendEventError::NotFound,
        _ if error.is_retriable() => SendEventError::Unavailable(Box::new(error)),
        _ => SendEventError::Rejected(Box::new(error)),
    }
}
