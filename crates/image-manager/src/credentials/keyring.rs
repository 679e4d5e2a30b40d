use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::credential::{CredentialOrigin, PullCredential};
use super::docker_config::{DockerConfig, DockerConfigEntry};
use super::location::RegistryLocation;

/// Where credentials of the default registry are.
const DEFAULT_REGISTRY_HOST: &str = "index.docker.io";

/// Credentials by the place that they are for, the more specific places first.
#[derive(Debug, Default)]
pub(crate) struct Keyring {
    places: BTreeMap<Reverse<String>, (RegistryLocation, Vec<PullCredential>)>,
}

impl Keyring {
    /// Adds all credentials of a configuration. Those for one place stay in the order in which they
    /// were added.
    pub(crate) fn add(&mut self, origin: &CredentialOrigin, config: DockerConfig) {
        for (written, entry) in config {
            let place = place_of(&written);
            let location = match RegistryLocation::parse(&place) {
                Ok(location) => location,
                Err(error) => {
                    tracing::error!(place, origin = ?origin, error = %error,
                        "Ignoring credentials for what is no place of a registry");
                    continue;
                }
            };
            let DockerConfigEntry { username, password, email } = entry;
            let credential =
                PullCredential::new(username, password, origin.clone()).with_email(&email);
            let (_, credentials) =
                self.places.entry(Reverse(place)).or_insert_with(|| (location, Vec::new()));
            credentials.push(credential);
        }
    }

    /// The credentials for an image, the best first. `repository` is its registry and path in full,
    /// such as `docker.io/library/busybox`.
    pub(crate) fn lookup(&self, repository: &str) -> Vec<PullCredential> {
        let Ok(target) = RegistryLocation::parse(repository) else { return Vec::new() };
        let found: Vec<PullCredential> = self
            .places
            .values()
            .filter(|(place, _)| place.covers(&target))
            .flat_map(|(_, credentials)| credentials.iter().cloned())
            .collect();
        if found.is_empty() && is_of_default_registry(repository) {
            let default = self.places.get(&Reverse(DEFAULT_REGISTRY_HOST.to_owned()));
            return default.map(|(_, credentials)| credentials.clone()).unwrap_or_default();
        }
        found
    }
}

/// The place without scheme and without the version of the registry's API, both of which Docker
/// writes: `https://index.docker.io/v1/` is `index.docker.io`.
fn place_of(written: &str) -> String {
    let bare = ["https://", "http://"]
        .iter()
        .find_map(|scheme| written.strip_prefix(scheme))
        .unwrap_or(written);
    let (host, path) = match bare.find('/') {
        Some(slash) => bare.split_at(slash),
        None => (bare, ""),
    };
    let beneath = |version: &str| path.strip_prefix(version).filter(|rest| rest.starts_with('/'));
    match beneath("/v2").or_else(|| beneath("/v1")).unwrap_or(path) {
        "/" => host.to_owned(),
        path => format!("{host}{path}"),
    }
}

fn is_of_default_registry(repository: &str) -> bool {
    match repository.split_once('/') {
        Some((first, _)) => {
            let is_default = first == "docker.io" || first == DEFAULT_REGISTRY_HOST;
            is_default || (!first.is_empty() && !first.contains(['.', ':']))
        }
        None => !repository.is_empty(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The users that a keyring with one user for each place finds.
    fn users(places: &[&str], repository: &str) -> Vec<String> {
        let mut keyring = Keyring::default();
        for place in places {
            let entry = DockerConfigEntry {
                username: (*place).to_owned(),
                password: "p".into(),
                email: String::new(),
            };
            keyring
                .add(&CredentialOrigin::Node, DockerConfig::from([((*place).to_owned(), entry)]));
        }
        let found = keyring.lookup(repository);
        found.iter().map(|credential| credential.to_auth_config().username).collect()
    }

    #[test]
    fn all_that_fits_is_found_and_the_most_specific_first() {
        for (places, repository, expected) in [
            (vec!["quay.io", "quay.io/coreos"], "quay.io/coreos/etcd", vec![1, 0]),
            (vec!["quay.io", "quay.io/coreos"], "quay.io/other", vec![0]),
            (vec!["*.r.io", "a.r.io", "a.r.io/x"], "a.r.io/x/y", vec![2, 1, 0]),
            (vec!["r.io:5000", "r.io"], "r.io:5000/a", vec![0]),
            (
                vec!["r.io", "https://r.io", "http://r.io/v2/", "r.io/v1/"],
                "r.io/a",
                vec![0, 1, 2, 3],
            ),
            (vec!["https://r.io/v1/team"], "r.io/team/a", vec![0]),
            (vec!["r.io/v1x"], "r.io/v1x/a", vec![0]),
            (vec!["https://index.docker.io/v1/"], "docker.io/library/busybox", vec![0]),
            (vec!["index.docker.io", "docker.io"], "docker.io/library/busybox", vec![1]),
            (vec!["docker.io/library"], "docker.io/library/busybox", vec![0]),
            (vec!["https://index.docker.io/v1/"], "quay.io/busybox", vec![]),
            (vec!["https://index.docker.io/v1/"], "localhost:5000/busybox", vec![]),
            (vec!["https://index.docker.io/v1/"], "localhost/busybox", vec![0]),
            (vec!["127.0.0.1:5000"], "127.0.0.1:5000/a", vec![0]),
            (vec!["no place", "r.io"], "r.io/a", vec![1]),
            (vec![], "r.io/a", vec![]),
        ] {
            let expected: Vec<String> =
                expected.iter().map(|index: &usize| places[*index].to_owned()).collect();
            assert_eq!(users(&places, repository), expected, "{places:?} {repository}");
        }
    }
}
