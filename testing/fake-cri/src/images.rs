//! The images that are here, and those that could be pulled.

use std::collections::BTreeMap;
use std::time::Duration;

use rubelet_cri::v1;
use tonic::{Code, Status};

/// What pulling an image does.
#[derive(Clone, Debug)]
pub struct Pull {
    pub(crate) after: Duration,
    pub(crate) result: Result<v1::Image, (Code, String)>,
    pub(crate) password: Option<String>,
}

impl Pull {
    /// Brings an image of `size` bytes.
    pub fn brings(name: &str, size: u64) -> Self {
        Self { after: Duration::ZERO, result: Ok(image(name, size)), password: None }
    }

    /// Fails with this answer.
    pub fn fails(code: Code, message: impl Into<String>) -> Self {
        Self { after: Duration::ZERO, result: Err((code, message.into())), password: None }
    }

    /// Takes this long.
    pub fn after(mut self, after: Duration) -> Self {
        self.after = after;
        self
    }

    /// Demands this password.
    pub fn with_password(mut self, password: impl Into<String>) -> Self {
        self.password = Some(password.into());
        self
    }
}

/// An image as the runtime shows it, with an id and a digest made of its name.
pub(crate) fn image(name: &str, size: u64) -> v1::Image {
    let name = normalized(name);
    let (high, low) = (rubelet_types::fnv1a_128(name.as_bytes()), size);
    let id = format!("sha256:{high:032x}{low:032x}");
    let (repository, tag) = match name.split_once('@') {
        Some((repository, _)) => (repository.to_owned(), None),
        None => {
            let colon = name.rfind(':').unwrap_or(name.len());
            (name[..colon].to_owned(), Some(name.clone()))
        }
    };
    v1::Image {
        id: id.clone(),
        repo_tags: tag.into_iter().collect(),
        repo_digests: vec![match name.contains('@') {
            true => name,
            false => format!("{repository}@{id}"),
        }],
        size,
        ..Default::default()
    }
}

/// The full name of a short image name: registry, repository and tag filled in.
fn normalized(name: &str) -> String {
    let with_registry = match name.split_once('/') {
        Some((first, _)) if first.contains(['.', ':']) || first == "localhost" => name.to_owned(),
        Some(_) => format!("docker.io/{name}"),
        None => format!("docker.io/library/{name}"),
    };
    let after_slash = with_registry.rsplit('/').next().unwrap_or_default();
    if after_slash.contains([':', '@']) { with_registry } else { format!("{with_registry}:latest") }
}

/// What is here, by id, and what could be pulled, by full name.
#[derive(Debug, Default)]
pub(crate) struct Images {
    present: BTreeMap<String, v1::Image>,
    registry: BTreeMap<String, Pull>,
}

impl Images {
    pub(crate) fn add(&mut self, image: v1::Image) {
        self.present.insert(image.id.clone(), image);
    }

    pub(crate) fn offer(&mut self, name: &str, pull: Pull) {
        self.registry.insert(normalized(name), pull);
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &v1::Image> {
        self.present.values()
    }

    /// The image with this id, tag or digest.
    pub(crate) fn find(&self, name: &str) -> Option<&v1::Image> {
        if let Some(image) = self.present.get(name) {
            return Some(image);
        }
        let full = normalized(name);
        self.present
            .values()
            .find(|image| image.repo_tags.contains(&full) || image.repo_digests.contains(&full))
    }

    pub(crate) fn remove(&mut self, name: &str) -> bool {
        let id = self.find(name).map(|image| image.id.clone());
        id.is_some_and(|id| self.present.remove(&id).is_some())
    }

    /// What a pull of `name` does.
    pub(crate) fn pull(&self, name: &str) -> Pull {
        let full = normalized(name);
        self.registry.get(&full).cloned().unwrap_or_else(|| {
            Pull::fails(
                Code::NotFound,
                format!(
                    "failed to pull and unpack image {full:?}: failed to resolve reference \
                     {full:?}: {full}: not found"
                ),
            )
        })
    }
}

impl Pull {
    /// The image, if the credentials do.
    pub(crate) fn finish(self, auth: Option<&v1::AuthConfig>) -> Result<v1::Image, Status> {
        if let Some(password) = self.password
            && auth.is_none_or(|auth| auth.password != password)
        {
            return Err(Status::unknown(
                "failed to authorize: failed to fetch anonymous token: 401 Unauthorized",
            ));
        }
        self.result.map_err(|(code, message)| Status::new(code, message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_filled_in() {
        for (name, full) in [
            ("busybox", "docker.io/library/busybox:latest"),
            ("busybox:1.36", "docker.io/library/busybox:1.36"),
            ("team/app", "docker.io/team/app:latest"),
            ("registry.k8s.io/pause:3.10", "registry.k8s.io/pause:3.10"),
            ("localhost:5000/app", "localhost:5000/app:latest"),
            ("localhost/app@sha256:ab", "localhost/app@sha256:ab"),
        ] {
            assert_eq!(normalized(name), full);
        }
    }

    #[test]
    fn an_image_is_found_by_id_tag_and_digest() {
        let mut images = Images::default();
        images.add(image("busybox:1", 7));
        let found = images.find("docker.io/library/busybox:1").unwrap().clone();
        assert!(found.repo_digests[0].starts_with("docker.io/library/busybox@sha256:"));
        for name in [&found.id, &found.repo_digests[0], "busybox:1"] {
            assert_eq!(images.find(name), Some(&found), "{name}");
        }
        assert_eq!(images.find("busybox:2"), None);
        assert!(images.remove("busybox:1"));
        assert!(!images.remove("busybox:1"));
    }
}
