//! What the controllers and the scheduler make of objects.

use anyhow::{Context, ensure};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rubelet_test_bed::trials::Trial;
use serde_json::{Value, json};

use crate::ground::{Ground, block_on, eventually};
use crate::nodes::create_ready_node;

pub(crate) const TRIALS: &[Trial<Ground>] = &[
    Trial {
        name: "a_pod_can_be_made_at_once_and_gets_a_ready_node",
        run: a_pod_can_be_made_at_once_and_gets_a_ready_node,
    },
    Trial {
        name: "a_token_for_a_service_account_names_its_issuer_and_is_believed",
        run: a_token_for_a_service_account_names_its_issuer_and_is_believed,
    },
];

const DEFAULT: &str = "/api/v1/namespaces/default";

fn a_pod_can_be_made_at_once_and_gets_a_ready_node(ground: &Ground) -> anyhow::Result<()> {
    let control_plane = ground.shared()?;
    block_on(async {
        let admin = control_plane.admin();
        create_ready_node(control_plane, "ready").await?;
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "placed" },
            "spec": {
                "containers": [{ "name": "one", "image": "registry.k8s.io/pause:3.10" }],
                "tolerations": [{ "operator": "Exists" }]
            }
        });
        let made = admin.create(&format!("{DEFAULT}/pods"), &pod).await?;
        // The admission plugin has given it the token of its service account.
        let volumes = made["spec"]["volumes"].as_array().context("volumes")?;
        ensure!(volumes.iter().any(|volume| !volume["projected"].is_null()), "{made}");
        let placed = eventually("a node for the pod", async || {
            let pod = admin.get(&format!("{DEFAULT}/pods/placed")).await?;
            let node = pod["spec"]["nodeName"].as_str();
            Ok(node.map(str::to_owned).ok_or_else(|| pod["status"].to_string()))
        });
        ensure!(placed.await? == "ready");
        let options = json!({ "gracePeriodSeconds": 0 });
        let path = format!("{DEFAULT}/pods/placed");
        let body = Some(("application/json", &options));
        let (status, answer) = admin.request(hyper::Method::DELETE, &path, body).await?;
        ensure!(status == 200, "{status} {answer}");
        admin.delete("/api/v1/nodes/ready").await?;
        Ok(())
    })
}

fn a_token_for_a_service_account_names_its_issuer_and_is_believed(
    ground: &Ground,
) -> anyhow::Result<()> {
    let control_plane = ground.shared()?;
    block_on(async {
        let admin = control_plane.admin();
        let request = json!({
            "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
            "spec": { "audiences": ["somebody"], "expirationSeconds": 600 }
        });
        let path = format!("{DEFAULT}/serviceaccounts/default/token");
        let answer = admin.create(&path, &request).await?;
        let token = answer["status"]["token"].as_str().context("a token")?;
        let claims = token.split('.').nth(1).context("three parts")?;
        let claims: Value = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(claims)?)?;
        ensure!(claims["iss"] == "https://kubernetes.default.svc.cluster.local", "{claims}");
        let review = json!({
            "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview",
            "spec": { "token": token, "audiences": ["somebody"] }
        });
        let review = admin.create("/apis/authentication.k8s.io/v1/tokenreviews", &review).await?;
        ensure!(review["status"]["authenticated"] == true, "{review}");
        let user = &review["status"]["user"]["username"];
        ensure!(user == "system:serviceaccount:default:default", "{review}");
        Ok(())
    })
}
