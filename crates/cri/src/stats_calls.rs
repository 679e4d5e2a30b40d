//! The statistics and metrics calls of the runtime service.

use rubelet_types::{ContainerId, SandboxId};

use crate::{CriClient, CriError, Rpc, v1};

impl CriClient {
    /// Statistics of one container; none if the runtime has none of it.
    pub async fn container_stats(
        &self,
        id: &ContainerId,
    ) -> Result<Option<v1::ContainerStats>, CriError> {
        let message = v1::ContainerStatsRequest { container_id: id.to_string() };
        let answer = self
            .runtime(Rpc::ContainerStats, message, |mut client, request| async move {
                client.container_stats(request).await
            })
            .await?;
        Ok(answer.stats)
    }

    /// Statistics of all containers that match `filter`.
    pub async fn list_container_stats(
        &self,
        filter: Option<v1::ContainerStatsFilter>,
    ) -> Result<Vec<v1::ContainerStats>, CriError> {
        let in_one = self.runtime(
            Rpc::ListContainerStats,
            v1::ListContainerStatsRequest { filter: filter.clone() },
            |mut client, request| async move { client.list_container_stats(request).await },
        );
        self.list(
            Rpc::StreamContainerStats,
            v1::StreamContainerStatsRequest { filter },
            |mut clients, request| async move {
                clients.runtime.stream_container_stats(request).await
            },
            |part: v1::StreamContainerStatsResponse| part.container_stats,
            async { Ok(in_one.await?.stats) },
        )
        .await
    }

    /// Statistics of one sandbox; none if the runtime has none of it.
    pub async fn pod_sandbox_stats(
        &self,
        id: &SandboxId,
    ) -> Result<Option<v1::PodSandboxStats>, CriError> {
        let message = v1::PodSandboxStatsRequest { pod_sandbox_id: id.to_string() };
        let answer = self
            .runtime(Rpc::PodSandboxStats, message, |mut client, request| async move {
                client.pod_sandbox_stats(request).await
            })
            .await?;
        Ok(answer.stats)
    }

    /// Statistics of all sandboxes that match `filter`.
    pub async fn list_pod_sandbox_stats(
        &self,
        filter: Option<v1::PodSandboxStatsFilter>,
    ) -> Result<Vec<v1::PodSandboxStats>, CriError> {
        let in_one = self.runtime(
            Rpc::ListPodSandboxStats,
            v1::ListPodSandboxStatsRequest { filter: filter.clone() },
            |mut client, request| async move { client.list_pod_sandbox_stats(request).await },
        );
        self.list(
            Rpc::StreamPodSandboxStats,
            v1::StreamPodSandboxStatsRequest { filter },
            |mut clients, request| async move {
                clients.runtime.stream_pod_sandbox_stats(request).await
            },
            |part: v1::StreamPodSandboxStatsResponse| part.pod_sandbox_stats,
            async { Ok(in_one.await?.stats) },
        )
        .await
    }

    /// What metrics [`Self::list_pod_sandbox_metrics`] answers with.
    pub async fn list_metric_descriptors(&self) -> Result<Vec<v1::MetricDescriptor>, CriError> {
        let answer = self
            .runtime(
                Rpc::ListMetricDescriptors,
                v1::ListMetricDescriptorsRequest {},
                |mut client, request| async move { client.list_metric_descriptors(request).await },
            )
            .await?;
        Ok(answer.descriptors)
    }

    /// Metrics of all sandboxes.
    pub async fn list_pod_sandbox_metrics(&self) -> Result<Vec<v1::PodSandboxMetrics>, CriError> {
        let in_one = self.runtime(
            Rpc::ListPodSandboxMetrics,
            v1::ListPodSandboxMetricsRequest {},
            |mut client, request| async move { client.list_pod_sandbox_metrics(request).await },
        );
        self.list(
            Rpc::StreamPodSandboxMetrics,
            v1::StreamPodSandboxMetricsRequest {},
            |mut clients, request| async move {
                clients.runtime.stream_pod_sandbox_metrics(request).await
            },
            |part: v1::StreamPodSandboxMetricsResponse| part.pod_sandbox_metrics,
            async { Ok(in_one.await?.pod_metrics) },
        )
        .await
    }
}
