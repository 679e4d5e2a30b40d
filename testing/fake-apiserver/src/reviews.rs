//! Requests that are answered and not kept: tokens, and reviews of tokens and of access.

use std::collections::HashMap;

use base64::Engine;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::kinds::{KINDS, Kind};
use crate::pods::timestamp;
use crate::refusal::Refusal;
use crate::storage::{Key, Storage};

/// A token lasts at least this long.
const SHORTEST: i64 = 600;

/// Answers a `TokenRequest` for the service account `account`. The token has the form of a JWT, and
/// no signature that anybody could check.
pub(crate) fn issue_token(
    storage: &mut Storage,
    account: &Key,
    mut request: Value,
    now: Timestamp,
) -> Result<Value, Refusal> {
    let seconds = request["spec"]["expirationSeconds"].as_i64().unwrap_or(3600);
    if seconds < SHORTEST {
        let mut refusal = Refusal::new(422, "Invalid", "");
        refusal.message = format!(
            "TokenRequest.authentication.k8s.io \"\" is invalid: spec.expirationSeconds: Invalid \
             value: {seconds}: may not specify a duration less than 10 minutes"
        );
        return Err(refusal);
    }
    let bound = request["spec"]["boundObjectRef"].clone();
    if bound.is_object() {
        check_bound(storage, account, &bound)?;
    }
    let expires = now + SignedDuration::from_secs(seconds);
    let number = storage.next_uid();
    let claims = json!({
        "sub": format!("system:serviceaccount:{}:{}", account.namespace, account.name),
        "aud": request["spec"]["audiences"],
        "iat": now.as_second(),
        "exp": expires.as_second(),
        "jti": number,
        "bound": bound,
    });
    let encode =
        |value: &Value| base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(value.to_string());
    let token = format!("{}.{}.fake", encode(&json!({"alg": "none"})), encode(&claims));
    request["kind"] = json!("TokenRequest");
    request["apiVersion"] = json!("authentication.k8s.io/v1");
    request["spec"]["expirationSeconds"] = json!(seconds);
    request["metadata"]["name"] = json!(account.name);
    request["metadata"]["namespace"] = json!(account.namespace);
    request["status"] = json!({"token": token, "expirationTimestamp": timestamp(expires)});
    Ok(request)
}

fn check_bound(storage: &Storage, account: &Key, bound: &Value) -> Result<(), Refusal> {
    let (plural, namespace) = match bound["kind"].as_str() {
        Some("Pod") => ("pods", account.namespace.clone()),
        Some("Secret") => ("secrets", account.namespace.clone()),
        Some("Node") => ("nodes", String::new()),
        kind => {
            return Err(Refusal::bad_request(format!(
                "cannot bind token to object of type {kind:?}"
            )));
        }
    };
    let name = bound["name"].as_str().unwrap_or_default();
    let kind: &Kind =
        KINDS.iter().find(|kind| kind.plural == plural).ok_or_else(Refusal::no_such_path)?;
    let key = Key { plural: kind.plural, namespace, name: name.to_owned() };
    let object = storage.get(&key).ok_or_else(|| Refusal::not_found(kind, name))?;
    let of_pod = object["spec"]["serviceAccountName"].as_str().unwrap_or("default");
    if plural == "pods" && of_pod != account.name {
        return Err(Refusal::bad_request(format!(
            "cannot bind token for serviceaccount {:?} to pod running with different serviceaccount \
             name.",
            account.name
        )));
    }
    let uid = bound["uid"].as_str().unwrap_or_default();
    if !uid.is_empty() && object["metadata"]["uid"] != uid {
        let because = format!(
            "the UID in the bound object reference ({uid}) does not match the UID in record. The \
             object might have been deleted and then recreated"
        );
        return Err(Refusal::conflict(kind, name, &because));
    }
    Ok(())
}

/// A user that a token stands for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct User {
    /// `system:node:a`, `jane`.
    pub name: String,
    /// The groups.
    pub groups: Vec<String>,
}

/// Answers a `TokenReview`.
pub(crate) fn review_token(mut review: Value, users: &HashMap<String, User>) -> Value {
    let user = review["spec"]["token"].as_str().and_then(|token| users.get(token));
    review["status"] = match user {
        Some(User { name, groups }) => json!({
            "authenticated": true,
            "user": {"username": name, "groups": groups},
            "audiences": review["spec"]["audiences"],
        }),
        None => json!({"authenticated": false, "error": "invalid bearer token"}),
    };
    review
}
