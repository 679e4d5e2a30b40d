//! Container events: hints that something happened, never the truth about it.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::stream::{self, BoxStream, Stream, StreamExt, TryStreamExt};
use jiff::Timestamp;
use rubelet_types::PodRef;

use crate::observe::{pod_of_container, pod_of_sandbox, timestamp};
use crate::{CriClient, CriError, Rpc, v1};

/// What happened to a container. Runtimes report sandboxes as containers too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ContainerEventKind {
    /// It was created.
    Created,
    /// It was started.
    Started,
    /// It ended.
    Stopped,
    /// It was removed.
    Deleted,
    /// A kind that is newer than this client.
    Other(i32),
}

/// One event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerEvent {
    /// The id of the container, or of the sandbox.
    pub id: String,
    /// What happened.
    pub kind: ContainerEventKind,
    /// When, by the runtime's clock.
    pub created_at: Timestamp,
    /// Whose it is, where the runtime tells.
    pub pod: Option<PodRef>,
}

impl ContainerEvent {
    fn from_message(event: &v1::ContainerEventResponse) -> Self {
        let kind = match v1::ContainerEventType::try_from(event.container_event_type) {
            Ok(v1::ContainerEventType::ContainerCreatedEvent) => ContainerEventKind::Created,
            Ok(v1::ContainerEventType::ContainerStartedEvent) => ContainerEventKind::Started,
            Ok(v1::ContainerEventType::ContainerStoppedEvent) => ContainerEventKind::Stopped,
            Ok(v1::ContainerEventType::ContainerDeletedEvent) => ContainerEventKind::Deleted,
            Err(_) => ContainerEventKind::Other(event.container_event_type),
        };
        let of_sandbox = event
            .pod_sandbox_status
            .as_ref()
            .and_then(|sandbox| pod_of_sandbox(&sandbox.labels, sandbox.metadata.as_ref()));
        let of_containers =
            || event.containers_statuses.iter().find_map(|status| pod_of_container(&status.labels));
        Self {
            id: event.container_id.clone(),
            kind,
            created_at: timestamp(event.created_at),
            pod: of_sandbox.or_else(of_containers),
        }
    }
}

/// The stream of container events. It ends, or yields an error and ends, when the runtime goes
/// away; who subscribes again must relist, for events in between are lost.
///
/// The first item is [`crate::CriErrorKind::Unimplemented`] if the runtime sends no events. That
/// they will come shows only with the first of them: runtimes send nothing before.
pub struct ContainerEvents(BoxStream<'static, Result<ContainerEvent, CriError>>);

impl Stream for ContainerEvents {
    type Item = Result<ContainerEvent, CriError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_next_unpin(cx)
    }
}

impl fmt::Debug for ContainerEvents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ContainerEvents")
    }
}

impl CriClient {
    /// Subscribes to container events when first polled.
    pub fn container_events(&self) -> ContainerEvents {
        let client = self.clone();
        let subscribe = async move {
            let stream = client
                .stream(
                    Rpc::GetContainerEvents,
                    v1::GetEventsRequest {},
                    |mut client, request| async move { client.get_container_events(request).await },
                )
                .await?;
            Ok(stream
                .map_ok(|event| ContainerEvent::from_message(&event))
                .map_err(|status| CriError::from_status(Rpc::GetContainerEvents, status)))
        };
        ContainerEvents(stream::once(subscribe).try_flatten().boxed())
    }
}

#[cfg(test)]
mod tests {
    use rubelet_types::labels;

    use super::*;

    #[test]
    fn an_event_names_its_pod_from_sandbox_or_container() {
        let labels = std::collections::BTreeMap::from([
            (labels::POD_UID.to_owned(), "uid-1".to_owned()),
            (labels::POD_NAME.to_owned(), "web".to_owned()),
            (labels::POD_NAMESPACE.to_owned(), "default".to_owned()),
        ]);
        let sandbox = v1::PodSandboxStatus { labels: labels.clone(), ..Default::default() };
        let container = v1::ContainerStatus { labels, ..Default::default() };
        let pod = Some(PodRef::new("uid-1", "default", "web"));
        for (pod_sandbox_status, containers_statuses, expected) in [
            (Some(sandbox), vec![], pod.clone()),
            (None, vec![container.clone()], pod.clone()),
            (Some(v1::PodSandboxStatus::default()), vec![container], pod),
            (None, vec![], None),
        ] {
            let event = ContainerEvent::from_message(&v1::ContainerEventResponse {
                container_id: "c".to_owned(),
                container_event_type: 2,
                created_at: 5,
                pod_sandbox_status,
                containers_statuses,
            });
            assert_eq!(event.pod, expected);
            assert_eq!(event.kind, ContainerEventKind::Stopped);
            assert_eq!(event.created_at.as_nanosecond(), 5);
        }
    }

    #[test]
    fn an_unknown_kind_is_kept() {
        let event = ContainerEvent::from_message(&v1::ContainerEventResponse {
            container_event_type: 77,
            ..Default::default()
        });
        assert_eq!(event.kind, ContainerEventKind::Other(77));
    }
}
