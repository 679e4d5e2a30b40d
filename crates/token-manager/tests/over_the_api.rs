//! Tokens from the client of the API server, and a small working server behind it.

use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use rubelet_apiserver::ApiServer;
use rubelet_fake_apiserver::{FakeApiServer, FakeOptions};
use rubelet_token_manager::{TokenManager, WantedToken};
use rubelet_types::{Clock, pod_ref};
use serde_json::json;

fn server() -> (TokenManager<ApiServer>, FakeApiServer, WantedToken) {
    let server = FakeApiServer::new(FakeOptions::default());
    let account: ServiceAccount =
        serde_json::from_value(json!({"metadata": {"namespace": "default", "name": "sa"}}))
            .expect("an account");
    server.put(&account);
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"namespace": "default", "name": "web"},
        "spec": {"serviceAccountName": "sa", "containers": []},
    }))
    .expect("a pod");
    let pod = server.put(&pod);
    let manager = TokenManager::new(server.client(), Clock::system());
    let wanted = WantedToken {
        pod: pod_ref(&pod),
        service_account: "sa".to_owned(),
        service_account_uid: None,
        audiences: vec!["vault".to_owned()],
        expiration_seconds: 3607,
    };
    (manager, server, wanted)
}

#[tokio::test]
async fn a_token_is_bound_to_its_pod() {
    let (manager, server, wanted) = server();
    let token = manager.token(&wanted).await.expect("a token");
    assert_eq!(token.token.split('.').count(), 3);
    assert_eq!(token.lives_seconds, Some(3607));
    let left = token.expires_at.duration_since(Clock::system().now()).as_secs();
    assert!((3500..=3607).contains(&left), "{left}");
    assert_eq!(manager.token(&wanted).await.expect("the same"), token);

    // Another pod of that name is another pod.
    let mut other = wanted.clone();
    other.pod.uid = "other".into();
    let error = manager.token(&other).await.expect_err("no such pod").to_string();
    assert!(error.starts_with("failed to fetch token: "), "{error}");
    assert!(error.contains("does not match the UID in record"), "{error}");

    // The server is away: the token holds, and there is no new one.
    server.set_away(true);
    assert_eq!(manager.token(&wanted).await.expect("the same"), token);
    let vault = WantedToken { audiences: Vec::new(), ..wanted };
    manager.token(&vault).await.expect_err("nobody answers");
}

#[tokio::test]
async fn what_does_not_exist_gets_no_token() {
    let (manager, server, wanted) = server();
    server.remove::<ServiceAccount>("default", "sa");
    let error = manager.token(&wanted).await.expect_err("no such account");
    assert_eq!(error.to_string(), "failed to fetch token: serviceaccounts \"sa\" not found");
}
