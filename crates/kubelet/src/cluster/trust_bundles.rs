//! Certificates that the cluster trusts.

use k8s_openapi::api::certificates::v1beta1::ClusterTrustBundle;
use rubelet_apiserver::{ApiServer, Selector};
use rubelet_types::{Fetched, error_chain};
use rubelet_volume_plan::TrustBundleSpec;

/// Reads ClusterTrustBundles, and keeps none: few pods ask for them, and seldom.
#[derive(Debug)]
pub(crate) struct TrustBundles {
    api: ApiServer,
    /// The feature gate `ClusterTrustBundleProjection`.
    is_enabled: bool,
}

impl TrustBundles {
    pub(crate) fn new(api: ApiServer, is_enabled: bool) -> Self {
        Self { api, is_enabled }
    }

    /// What is in the bundles that are meant; not found if there is none.
    pub(crate) async fn read(&self, bundle: &TrustBundleSpec) -> Fetched<Vec<String>> {
        if !self.is_enabled {
            return Fetched::Failed(
                "projected source clusterTrustBundle needs the feature gate \
                 ClusterTrustBundleProjection, which is off"
                    .to_owned(),
            );
        }
        let bundles = self.api.cluster::<ClusterTrustBundle>();
        match bundle {
            TrustBundleSpec::Name(name) => match bundles.get(name).await {
                Ok(found) => Fetched::Found(vec![found.spec.trust_bundle]),
                Err(error) if error.is_not_found() => Fetched::NotFound,
                Err(error) => Fetched::Failed(error_chain(&error)),
            },
            TrustBundleSpec::Signer { labels: None, .. } => Fetched::NotFound,
            TrustBundleSpec::Signer { signer, labels: Some(labels) } => {
                let mut selector = Selector::fields(format!("spec.signerName={signer}"));
                if !labels.is_empty() {
                    selector = selector.and_labels(labels.as_str());
                }
                match bundles.list(&selector).await {
                    Ok(found) if found.objects.is_empty() => Fetched::NotFound,
                    Ok(found) => {
                        let texts = found.objects.into_iter().map(|one| one.spec.trust_bundle);
                        Fetched::Found(texts.collect())
                    }
                    Err(error) => Fetched::Failed(error_chain(&error)),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rubelet_fake_apiserver::{FakeApiServer, FakeOptions};
    use rubelet_types::Clock;
    use serde_json::json;

    use super::*;

    #[tokio::test]
    async fn trust_bundles_are_not_read_without_their_gate() {
        let server = FakeApiServer::new(FakeOptions { clock: Clock::system(), seed: 1 });
        let bundle = json!({
            "apiVersion": "certificates.k8s.io/v1beta1", "kind": "ClusterTrustBundle",
            "metadata": { "name": "all" }, "spec": { "trustBundle": "text" },
        });
        server.put_raw("clustertrustbundles", bundle);
        let named = TrustBundleSpec::Name("all".to_owned());
        let read = |is_enabled| TrustBundles::new(server.client(), is_enabled);
        let Fetched::Found(texts) = read(true).read(&named).await else { panic!("not found") };
        assert_eq!(texts, ["text"]);
        let Fetched::Failed(why) = read(false).read(&named).await else { panic!("it was read") };
        assert!(why.contains("ClusterTrustBundleProjection"), "{why}");
    }
}
