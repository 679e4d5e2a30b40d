//! The container images that the demo and the end-to-end tests run, made on the spot.
//!
//! No registry is asked: the files come from Debian's static busybox and from two small programs
//! of our own (`pause.c`, `src/bin/probe-target.rs`), and each image is written as a docker archive
//! that `ctr images import` takes. [`ensure`] does nothing when nothing has changed since the last
//! time.

mod archive;
mod compile;
pub mod suite;

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use sha2::{Digest, Sha256};

use archive::{Image, RootFs};

/// The sandbox image, under the name that containerd is configured with.
pub const PAUSE: &str = "registry.k8s.io/pause:3.10";
/// Busybox with a link for each applet.
pub const BUSYBOX: &str = "docker.io/library/busybox:latest";
/// Busybox that runs as uid 1234.
pub const NONROOT: &str = "localhost/rubelet/nonroot:1";
/// Busybox plus `/probe-target`, a server whose answers to HTTP, TCP and gRPC probes can be changed
/// while it runs.
pub const PROBE_TARGET: &str = "localhost/rubelet/probe-target:1";

/// Raised when the way archives are written changes, so that cached ones are made anew.
const FORMAT: u32 = 1;

/// What an image set came to.
#[derive(Debug)]
pub struct ImageSet {
    /// The archives, in the order in which they are to be imported.
    pub archives: Vec<PathBuf>,
    /// Whether they had to be made now.
    pub made: bool,
}

/// Makes every image into `dir` unless the archives there were made from the same inputs.
///
/// # Errors
/// When busybox is not a static executable, a compiler is missing or fails, or `dir` cannot be
/// written.
pub fn ensure(dir: &Path, busybox: &Path) -> anyhow::Result<ImageSet> {
    let archives: Vec<PathBuf> = ["pause.tar", "busybox.tar", "nonroot.tar", "probe-target.tar"]
        .iter()
        .map(|name| dir.join(name))
        .collect();
    let busybox_bytes =
        std::fs::read(busybox).with_context(|| format!("cannot read {}", busybox.display()))?;
    let stamp_path = dir.join("made-from");
    let stamp = stamp(&busybox_bytes);
    let fresh = std::fs::read_to_string(&stamp_path).is_ok_and(|old| old == stamp)
        && archives.iter().all(|archive| archive.exists());
    if fresh {
        return Ok(ImageSet { archives, made: false });
    }

    std::fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    let pause = compile::compile_c(compile::PAUSE_SOURCE, &dir.join("pause"))?;
    let probe_target = compile::compile_rust(compile::PROBE_TARGET_SOURCE, dir)?;
    let applets = list_applets(busybox)?;

    let mut pause_root = RootFs::default();
    pause_root.file("pause", 0o755, pause);
    archive::write(
        &archives[0],
        &Image {
            references: &[PAUSE],
            entrypoint: &["/pause"],
            command: &[],
            user: "65535:65535",
            root: &pause_root,
        },
    )?;

    let mut root = busybox_root(busybox_bytes, &applets);
    archive::write(
        &archives[1],
        &Image { references: &[BUSYBOX], entrypoint: &[], command: &["sh"], user: "", root: &root },
    )?;
    archive::write(
        &archives[2],
        &Image {
            references: &[NONROOT],
            entrypoint: &["/bin/sh", "-c"],
            command: &["sleep 3600"],
            user: "1234",
            root: &root,
        },
    )?;

    root.file("probe-target", 0o755, probe_target);
    archive::write(
        &archives[3],
        &Image {
            references: &[PROBE_TARGET],
            entrypoint: &["/probe-target"],
            command: &[],
            user: "",
            root: &root,
        },
    )?;

    std::fs::write(&stamp_path, stamp)
        .with_context(|| format!("cannot write {}", stamp_path.display()))?;
    Ok(ImageSet { archives, made: true })
}

/// A digest of everything that goes into the images.
fn stamp(busybox: &[u8]) -> String {
    let mut hash = Sha256::new();
    hash.update(FORMAT.to_le_bytes());
    hash.update(busybox);
    hash.update(compile::PAUSE_SOURCE);
    hash.update(compile::PROBE_TARGET_SOURCE);
    archive::hex(&hash.finalize())
}

fn list_applets(busybox: &Path) -> anyhow::Result<Vec<String>> {
    let output = std::process::Command::new(busybox)
        .arg("--list")
        .output()
        .with_context(|| format!("cannot run {} --list", busybox.display()))?;
    if !output.status.success() {
        bail!("{} --list ended with {}", busybox.display(), output.status);
    }
    let text = String::from_utf8(output.stdout).context("busybox --list is not UTF-8")?;
    Ok(text.lines().map(str::to_owned).filter(|name| name != "busybox").collect())
}

fn busybox_root(busybox: Vec<u8>, applets: &[String]) -> RootFs {
    let mut root = RootFs::default();
    for (dir, mode) in [
        ("bin", 0o755),
        ("etc", 0o755),
        ("home", 0o755),
        ("root", 0o700),
        ("tmp", 0o1777),
        ("usr", 0o755),
        ("usr/bin", 0o755),
        ("var", 0o755),
    ] {
        root.dir(dir, mode);
    }
    root.file("bin/busybox", 0o755, busybox);
    for applet in applets {
        root.link(&format!("bin/{applet}"), "busybox");
    }
    root.link("usr/bin/env", "/bin/env");
    let passwd = "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n";
    root.file("etc/passwd", 0o644, passwd.into());
    root.file("etc/group", 0o644, "root:x:0:\nnogroup:x:65534:\n".into());
    root
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stamp_follows_the_busybox_it_is_made_from() {
        assert_eq!(stamp(b"one"), stamp(b"one"));
        assert_ne!(stamp(b"one"), stamp(b"two"));
    }

    #[test]
    fn every_applet_becomes_a_link_to_busybox() {
        let root = busybox_root(b"elf".to_vec(), &["sh".into(), "httpd".into()]);
        let layer = root.to_layer().expect("a small layer is written to memory");
        let mut archive = tar::Archive::new(layer.as_slice());
        let links: Vec<(String, String)> = archive
            .entries()
            .expect("entries")
            .map(|entry| entry.expect("entry"))
            .filter(|entry| entry.header().entry_type().is_symlink())
            .map(|entry| {
                let path = entry.path().expect("path").display().to_string();
                let target = entry.link_name().expect("link").expect("target");
                (path, target.display().to_string())
            })
            .collect();
        let expected =
            [("bin/sh", "busybox"), ("bin/httpd", "busybox"), ("usr/bin/env", "/bin/env")];
        let expected: Vec<(String, String)> =
            expected.iter().map(|(a, b)| (a.to_string(), b.to_string())).collect();
        assert_eq!(links, expected);
    }
}
