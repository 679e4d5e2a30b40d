//! From a request's path and query to what it asks for.

use std::collections::HashMap;

use http::{Method, Uri};
use rubelet_apiserver::Verb;

use crate::kinds::Kind;
use crate::refusal::Refusal;
use crate::storage::find_kind;

/// What a request asks for.
#[derive(Clone, Debug)]
pub(crate) struct Route {
    pub(crate) verb: Verb,
    pub(crate) kind: &'static Kind,
    /// Nothing: of all namespaces, or of a kind that is in none.
    pub(crate) namespace: Option<String>,
    pub(crate) name: Option<String>,
    pub(crate) subresource: Option<String>,
    pub(crate) query: HashMap<String, String>,
}

impl Route {
    pub(crate) fn parse(method: &Method, uri: &Uri) -> Result<Self, Refusal> {
        let query: HashMap<String, String> =
            uri.query().unwrap_or_default().split('&').filter_map(parse_pair).collect();
        let parts: Vec<String> =
            uri.path().split('/').filter(|part| !part.is_empty()).map(decode).collect();
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        let (group, version, rest) = match parts.as_slice() {
            ["api", version, rest @ ..] => ("", *version, rest),
            ["apis", group, version, rest @ ..] => (*group, *version, rest),
            _ => return Err(Refusal::no_such_path()),
        };
        let (namespace, rest) = match rest {
            // The objects of a namespace, not the namespace itself or its status.
            ["namespaces", namespace, plural, rest @ ..]
                if find_kind(group, version, plural).is_some() =>
            {
                (Some(*namespace), [&[*plural], rest].concat())
            }
            rest => (None, rest.to_vec()),
        };
        let [plural, rest @ ..] = rest.as_slice() else { return Err(Refusal::no_such_path()) };
        let kind = find_kind(group, version, plural).ok_or_else(Refusal::no_such_path)?;
        if namespace.is_some() && !kind.is_namespaced {
            return Err(Refusal::no_such_path());
        }
        let (name, subresource) = match rest {
            [] => (None, None),
            [name] => (Some(*name), None),
            [name, subresource] => (Some(*name), Some(*subresource)),
            _ => return Err(Refusal::no_such_path()),
        };
        let is_watch = query.get("watch").is_some_and(|value| value == "true" || value == "1");
        let verb = match (method, name, is_watch) {
            (&Method::GET, None, true) => Verb::Watch,
            (&Method::GET, None, false) => Verb::List,
            (&Method::GET, Some(_), false) => Verb::Get,
            (&Method::POST, None, _) => Verb::Create,
            (&Method::POST, Some(_), _) if subresource.is_some() => Verb::Create,
            (&Method::PUT, Some(_), _) => Verb::Update,
            (&Method::PATCH, Some(_), _) => Verb::Patch,
            (&Method::DELETE, Some(_), _) => Verb::Delete,
            _ => return Err(Refusal::method_not_allowed()),
        };
        // An object of a namespaced kind is in one.
        if kind.is_namespaced && namespace.is_none() && (name.is_some() || verb == Verb::Create) {
            return Err(Refusal::no_such_path());
        }
        Ok(Self {
            verb,
            kind,
            namespace: namespace.map(str::to_owned),
            name: name.map(str::to_owned),
            subresource: subresource.map(str::to_owned),
            query,
        })
    }

    pub(crate) fn query(&self, name: &str) -> Option<&str> {
        self.query.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// `pods`, `pods/status`.
    pub(crate) fn resource(&self) -> String {
        match &self.subresource {
            Some(subresource) => format!("{}/{subresource}", self.kind.plural),
            None => self.kind.plural.to_owned(),
        }
    }
}

fn parse_pair(pair: &str) -> Option<(String, String)> {
    let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
    (!name.is_empty()).then(|| (decode(name), decode(value)))
}

/// Undoes the escapes of a path or a query.
fn decode(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut plain = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let digit =
            |offset: usize| bytes.get(at + offset).and_then(|b| char::from(*b).to_digit(16));
        match (bytes[at], digit(1), digit(2)) {
            (b'%', Some(high), Some(low)) => {
                plain.extend(u8::try_from(high * 16 + low));
                at += 3;
                continue;
            }
            (b'+', _, _) => plain.push(b' '),
            (byte, _, _) => plain.push(byte),
        }
        at += 1;
    }
    String::from_utf8_lossy(&plain).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(method: Method, uri: &str) -> String {
        match Route::parse(&method, &uri.parse().unwrap()) {
            Ok(route) => format!(
                "{} {} {} {}",
                route.verb,
                route.resource(),
                route.namespace.as_deref().unwrap_or("-"),
                route.name.as_deref().unwrap_or("-")
            ),
            Err(refusal) => refusal.code.to_string(),
        }
    }

    #[test]
    fn paths_are_understood() {
        for (method, uri, expected) in [
            (Method::GET, "/api/v1/pods", "list pods - -"),
            (Method::GET, "/api/v1/pods?watch=true&x=%2F", "watch pods - -"),
            (Method::GET, "/api/v1/namespaces/n/pods/p", "get pods n p"),
            (Method::PATCH, "/api/v1/namespaces/n/pods/p/status", "patch pods/status n p"),
            (Method::GET, "/api/v1/namespaces/n", "get namespaces - n"),
            (Method::PATCH, "/api/v1/namespaces/n/status", "patch namespaces/status - n"),
            (
                Method::PUT,
                "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/a",
                "update leases kube-node-lease a",
            ),
            (
                Method::POST,
                "/api/v1/namespaces/n/serviceaccounts/s/token",
                "create serviceaccounts/token n s",
            ),
            (Method::DELETE, "/api/v1/nodes/a", "delete nodes - a"),
            (Method::DELETE, "/api/v1/nodes", "405"),
            (Method::POST, "/api/v1/pods", "404"),
            (Method::GET, "/api/v1/namespaces/n/nodes/a", "404"),
            (Method::GET, "/api/v1/unknowns", "404"),
            (Method::GET, "/other", "404"),
        ] {
            assert_eq!(shown(method.clone(), uri), expected, "{method} {uri}");
        }
    }
}
