//! The disk that carries binaries, manifests and the scenario into the guest, and its results out.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;
use rubelet_e2e::Cache;

use super::{Options, run_tool};
use crate::project;

const TOOLS: [&str; 5] = ["containerd", "containerd-shim-runc-v2", "ctr", "runc", "crictl"];
const PLUGINS: [&str; 3] = ["bridge", "host-local", "loopback"];
const IMAGES: [&str; 2] = ["pause.tar", "busybox.tar"];
/// Room for logs and for what scenarios write, bytes.
const ROOM: u64 = 256 << 20;

/// A disk of one boot, in a directory of its own.
#[derive(Debug)]
pub(crate) struct WorkDisk {
    directory: PathBuf,
    image: PathBuf,
}

impl WorkDisk {
    /// Fills a disk in `directory`; what an earlier boot left there goes.
    pub(crate) fn make(
        directory: &Path,
        cache: &Cache,
        kubelet: &Path,
        options: &Options,
    ) -> anyhow::Result<Self> {
        if directory.exists() {
            fs::remove_dir_all(directory)
                .with_context(|| format!("cannot remove {}", directory.display()))?;
        }
        let content = directory.join("content");
        for name in ["bin", "cni", "images", "guest", "manifests", "out"] {
            let path = content.join(name);
            fs::create_dir_all(&path).with_context(|| format!("cannot make {}", path.display()))?;
        }
        for (names, from, to) in [
            (&TOOLS[..], cache.bin(), "bin"),
            (&PLUGINS[..], cache.cni(), "cni"),
            (&IMAGES[..], cache.images(), "images"),
        ] {
            for name in names {
                place(&from.join(name), &content.join(to).join(name))?;
            }
        }
        place(kubelet, &content.join("bin/kubelet"))?;
        let sources = project::root().join("testing/vm");
        for name in ["guest", "manifests"] {
            place_all(&sources.join(name), &content.join(name))?;
        }
        if let Some(script) = &options.script {
            place(script, &content.join("guest/script.sh"))?;
        }
        for file in &options.files {
            let name =
                file.file_name().with_context(|| format!("{} is no file", file.display()))?;
            place(file, &content.join("guest").join(name))?;
        }

        let image = directory.join("work.img");
        let size = size_of(&content)? * 11 / 10 + ROOM;
        let file = fs::File::create(&image).context("cannot make the work disk")?;
        file.set_len(size).context("cannot make the work disk")?;
        // Without a journal it can be read as soon as the guest has written everything out.
        run_tool(
            Command::new("mke2fs")
                .args(["-q", "-t", "ext4", "-O", "^has_journal", "-d"])
                .arg(&content)
                .arg(&image),
        )?;
        fs::remove_dir_all(&content)
            .with_context(|| format!("cannot remove {}", content.display()))?;
        Ok(Self { directory: directory.to_owned(), image })
    }

    pub(crate) fn image(&self) -> &Path {
        &self.image
    }

    /// Takes what the guest has written to its `/work/out` from the disk, and removes the disk.
    pub(crate) fn take_results(self) -> anyhow::Result<PathBuf> {
        run_tool(
            Command::new("debugfs")
                .arg("-R")
                .arg(format!("rdump /out {:?}", self.directory.display().to_string()))
                .arg(&self.image),
        )?;
        let results = self.directory.join("out");
        anyhow::ensure!(results.is_dir(), "nothing could be read from the work disk");
        fs::remove_file(&self.image).context("cannot remove the work disk")?;
        Ok(results)
    }
}

/// Links a file where that is possible, and copies it else.
fn place(from: &Path, to: &Path) -> anyhow::Result<()> {
    let from = fs::canonicalize(from).with_context(|| format!("cannot find {}", from.display()))?;
    if fs::hard_link(&from, to).is_err() {
        fs::copy(&from, to).with_context(|| format!("cannot copy {}", from.display()))?;
    }
    Ok(())
}

/// Copies the files of a directory.
fn place_all(from: &Path, to: &Path) -> anyhow::Result<()> {
    let unreadable = || format!("cannot read {}", from.display());
    for entry in fs::read_dir(from).with_context(unreadable)? {
        let entry = entry.with_context(unreadable)?;
        place(&entry.path(), &to.join(entry.file_name()))?;
    }
    Ok(())
}

/// Bytes of all files below.
fn size_of(directory: &Path) -> anyhow::Result<u64> {
    let unreadable = || format!("cannot read {}", directory.display());
    let mut size = 0;
    for entry in fs::read_dir(directory).with_context(unreadable)? {
        let entry = entry.with_context(unreadable)?;
        let metadata = entry.metadata().with_context(unreadable)?;
        size += if metadata.is_dir() { size_of(&entry.path())? } else { metadata.len() };
    }
    Ok(size)
}
