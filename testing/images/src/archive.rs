//! One-layer docker archives, the same bytes for the same content.

use std::path::Path;

use anyhow::Context;
use serde_json::json;
use sha2::{Digest, Sha256};
use tar::{Builder, EntryType, Header};

/// An image with a single layer.
#[derive(Debug)]
pub(crate) struct Image<'a> {
    /// All its names.
    pub(crate) references: &'a [&'a str],
    pub(crate) entrypoint: &'a [&'a str],
    pub(crate) command: &'a [&'a str],
    /// As in an image config: `uid[:gid]`, or empty for root.
    pub(crate) user: &'a str,
    pub(crate) root: &'a RootFs,
}

/// The files of a layer, in the order in which they were added: a directory before what is in it.
#[derive(Debug, Default)]
pub(crate) struct RootFs {
    entries: Vec<(String, Entry)>,
}

#[derive(Debug)]
enum Entry {
    Dir { mode: u32 },
    File { mode: u32, content: Vec<u8> },
    Link { target: String },
}

impl RootFs {
    pub(crate) fn dir(&mut self, path: &str, mode: u32) {
        self.entries.push((format!("{path}/"), Entry::Dir { mode }));
    }

    pub(crate) fn file(&mut self, path: &str, mode: u32, content: Vec<u8>) {
        self.entries.push((path.to_owned(), Entry::File { mode, content }));
    }

    /// A file in the place of whatever is there.
    pub(crate) fn replace(&mut self, path: &str, mode: u32, content: Vec<u8>) {
        self.remove(path);
        self.file(path, mode, content);
    }

    pub(crate) fn remove(&mut self, path: &str) {
        self.entries.retain(|(known, _)| known != path);
    }

    pub(crate) fn link(&mut self, path: &str, target: &str) {
        self.entries.push((path.to_owned(), Entry::Link { target: target.to_owned() }));
    }

    pub(crate) fn to_layer(&self) -> anyhow::Result<Vec<u8>> {
        let mut builder = Builder::new(Vec::new());
        for (path, entry) in &self.entries {
            match entry {
                Entry::Dir { mode } => {
                    let mut header = header(EntryType::Directory, *mode, 0);
                    builder.append_data(&mut header, path, std::io::empty())?;
                }
                Entry::File { mode, content } => {
                    let mut header = header(EntryType::Regular, *mode, content.len() as u64);
                    builder.append_data(&mut header, path, content.as_slice())?;
                }
                Entry::Link { target } => {
                    let mut header = header(EntryType::Symlink, 0o777, 0);
                    builder.append_link(&mut header, path, target)?;
                }
            }
        }
        Ok(builder.into_inner()?)
    }
}

fn header(kind: EntryType, mode: u32, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(size);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header
}

/// Writes `image` to `path`, by way of a temporary name so that a half-written archive is never
/// taken for a whole one.
pub(crate) fn write(path: &Path, image: &Image<'_>) -> anyhow::Result<()> {
    let layer = image.root.to_layer()?;
    let config = image_config(image, &hex(&Sha256::digest(&layer))).to_string().into_bytes();
    let config_name = format!("{}.json", hex(&Sha256::digest(&config)));
    let manifest = json!([{
        "Config": config_name,
        "RepoTags": image.references,
        "Layers": ["layer.tar"],
    }]);

    let mut builder = Builder::new(Vec::new());
    for (name, content) in [
        ("layer.tar", layer.as_slice()),
        (config_name.as_str(), config.as_slice()),
        ("manifest.json", manifest.to_string().as_bytes()),
    ] {
        let mut header = header(EntryType::Regular, 0o644, content.len() as u64);
        builder.append_data(&mut header, name, content)?;
    }
    let bytes = builder.into_inner()?;

    let partial = path.with_extension("partial");
    std::fs::write(&partial, bytes)
        .with_context(|| format!("cannot write {}", partial.display()))?;
    std::fs::rename(&partial, path).with_context(|| format!("cannot write {}", path.display()))
}

fn image_config(image: &Image<'_>, layer_digest: &str) -> serde_json::Value {
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    json!({
        "architecture": architecture,
        "os": "linux",
        "created": "1970-01-01T00:00:00Z",
        "config": {
            "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
            "Entrypoint": image.entrypoint,
            "Cmd": image.command,
            "WorkingDir": "/",
            "User": image.user,
        },
        "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{layer_digest}")] },
        "history": [{ "created_by": "cargo xtask setup" }],
    })
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn the_manifest_names_the_config_and_the_config_the_layer() {
        let mut root = RootFs::default();
        root.dir("etc", 0o755);
        root.file("etc/motd", 0o644, b"hello\n".to_vec());
        let image = Image {
            references: &["localhost/test:1"],
            entrypoint: &["/bin/true"],
            command: &[],
            user: "1234",
            root: &root,
        };
        let path = std::env::temp_dir().join(format!("rubelet-archive-{}.tar", std::process::id()));
        write(&path, &image).expect("written");

        let mut members = std::collections::BTreeMap::new();
        let file = std::fs::File::open(&path).expect("opened");
        for entry in tar::Archive::new(file).entries().expect("entries") {
            let mut entry = entry.expect("entry");
            let name = entry.path().expect("path").display().to_string();
            let mut content = Vec::new();
            entry.read_to_end(&mut content).expect("content");
            members.insert(name, content);
        }
        std::fs::remove_file(&path).expect("removed");

        let manifest: serde_json::Value =
            serde_json::from_slice(&members["manifest.json"]).expect("manifest");
        assert_eq!(manifest[0]["RepoTags"][0], "localhost/test:1");
        let config_name = manifest[0]["Config"].as_str().expect("config name");
        let config: serde_json::Value =
            serde_json::from_slice(&members[config_name]).expect("config");
        assert_eq!(config["config"]["User"], "1234");
        assert_eq!(
            config["rootfs"]["diff_ids"][0],
            format!("sha256:{}", hex(&Sha256::digest(&members["layer.tar"])))
        );
    }
}
