//! The node's own Docker configuration files.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use super::docker_config::{DockerConfig, DockerConfigFormat, parse_docker_config};

/// Larger files are not read.
const MAX_BYTES: u64 = 10 << 20;

/// Where the node's credentials may be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeCredentialFiles {
    files: Vec<(PathBuf, DockerConfigFormat)>,
}

impl NodeCredentialFiles {
    /// Upstream's places in upstream's order: `config.json` in the kubelet's root directory, in the
    /// working directory, in `$HOME/.docker` and in `/.docker`; then `.dockercfg` in the root
    /// directory, the working directory, `$HOME` and `/`.
    pub fn new(root: &Path, home: Option<&Path>) -> Self {
        let working = Path::new(".");
        let files = |dirs: [Option<PathBuf>; 4], name: &'static str, format| {
            dirs.into_iter().flatten().map(move |dir| (dir.join(name), format))
        };
        let json = [
            Some(root.to_owned()),
            Some(working.to_owned()),
            home.map(|home| home.join(".docker")),
            Some(PathBuf::from("/.docker")),
        ];
        let legacy = [
            Some(root.to_owned()),
            Some(working.to_owned()),
            home.map(Path::to_owned),
            Some(PathBuf::from("/")),
        ];
        Self {
            files: files(json, "config.json", DockerConfigFormat::Json)
                .chain(files(legacy, ".dockercfg", DockerConfigFormat::Legacy))
                .collect(),
        }
    }

    /// The credentials of the first file that can be used; of none if there is none. Blocking.
    ///
    /// They are read each time, so that a new password counts at the next pull.
    pub(crate) fn read(&self) -> DockerConfig {
        for (path, format) in &self.files {
            let contents = match read_bounded(path) {
                Ok(contents) => contents,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => {
                    tracing::warn!(path = %path.display(), error = %error,
                        "Cannot read the node's credentials");
                    continue;
                }
            };
            match parse_docker_config(&contents, *format) {
                Ok(config) => return config,
                Err(error) => tracing::warn!(path = %path.display(), error = %error,
                    "Cannot use the node's credentials"),
            }
        }
        DockerConfig::new()
    }
}

fn read_bounded(path: &Path) -> io::Result<Vec<u8>> {
    let mut contents = Vec::new();
    File::open(path)?.take(MAX_BYTES + 1).read_to_end(&mut contents)?;
    if u64::try_from(contents.len()).unwrap_or(u64::MAX) > MAX_BYTES {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "the file is too large"));
    }
    Ok(contents)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn places_are_upstreams_in_upstreams_order() {
        let places = |home| {
            let files = NodeCredentialFiles::new(Path::new("/var/lib/kubelet"), home).files;
            files.iter().map(|(path, _)| path.display().to_string()).collect::<Vec<_>>()
        };
        assert_eq!(
            places(Some(Path::new("/root"))),
            [
                "/var/lib/kubelet/config.json",
                "./config.json",
                "/root/.docker/config.json",
                "/.docker/config.json",
                "/var/lib/kubelet/.dockercfg",
                "./.dockercfg",
                "/root/.dockercfg",
                "/.dockercfg",
            ]
        );
        assert_eq!(places(None).len(), 6);
    }

    #[test]
    fn the_first_file_that_can_be_used_counts_as_a_whole() {
        let dir = tempfile::tempdir().unwrap();
        let (root, home) = (dir.path().join("root"), dir.path().join("home"));
        fs::create_dir_all(home.join(".docker")).unwrap();
        fs::create_dir(&root).unwrap();
        let files = NodeCredentialFiles::new(&root, Some(&home));
        let found = || files.read().into_keys().collect::<Vec<_>>();
        assert_eq!(found(), [] as [String; 0]);
        fs::write(home.join(".dockercfg"), r#"{"legacy.io": {}}"#).unwrap();
        assert_eq!(found(), ["legacy.io"]);
        fs::write(home.join(".docker/config.json"), r#"{"auths": {"home.io": {}}}"#).unwrap();
        assert_eq!(found(), ["home.io"]);
        fs::write(root.join("config.json"), r#"{"auths": {"root.io": {}}}"#).unwrap();
        assert_eq!(found(), ["root.io"]);
        fs::write(root.join("config.json"), "{").unwrap();
        assert_eq!(found(), ["home.io"], "what is damaged is passed over");
        fs::remove_file(root.join("config.json")).unwrap();
        fs::create_dir(root.join("config.json")).unwrap();
        assert_eq!(found(), ["home.io"], "and so is what cannot be read");
    }
}
