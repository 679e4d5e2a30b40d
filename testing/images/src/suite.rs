//! Stand-ins for the images of Kubernetes' own end-to-end tests, under the names that these ask for.
//!
//! The tests run them for what any such program does (a shell, a web server, a tool that answers
//! requests), so Debian's programs do as well. Only `agnhost` is the real one, built from source.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use sha2::{Digest, Sha256};

use crate::archive::{self, Image, RootFs};
use crate::{FORMAT, ImageSet, busybox_root, compile, list_applets};

const SHELL_SOURCE: &str = include_str!("../suite-shell.c");
const EUID_SOURCE: &str = include_str!("../suite-euid.c");

/// The sandbox image under the other names that the tests use.
const PAUSE: &[&str] = &["registry.k8s.io/pause:3.10.1", "registry.k8s.io/pause:3.10.2"];
const BUSYBOX: &[&str] = &[
    "registry.k8s.io/e2e-test-images/busybox:1.37.0-1",
    "registry.k8s.io/e2e-test-images/busybox:1.36.1-1",
];
const NONROOT: &[&str] = &["registry.k8s.io/e2e-test-images/nonroot:1.5"];
const NO_NEW_PRIVILEGES: &[&str] = &["registry.k8s.io/e2e-test-images/nonewprivs:1.4"];
const NGINX: &[&str] = &[
    "registry.k8s.io/e2e-test-images/nginx:1.27-0",
    "registry.k8s.io/e2e-test-images/nginx:1.15-4",
];
const IPC: &[&str] = &["registry.k8s.io/e2e-test-images/ipc-utils:1.4"];
/// The real one. What else it carries is glibc and a `hostname` that uses it, which is all that the last
/// of its names is asked for.
const AGNHOST: &[&str] = &[
    "registry.k8s.io/e2e-test-images/agnhost:2.63.0",
    "registry.k8s.io/e2e-test-images/agnhost:2.55",
    "registry.k8s.io/e2e-test-images/glibc-dns-testing:2.0.0",
];

const NGINX_PAGE: &str = "<title>Welcome to nginx!</title>\n";

/// Makes every image into `dir`, unless the archives there were made from the same inputs.
///
/// # Errors
/// When a program that goes into an image is not there, a compiler fails, or `dir` cannot be written.
pub fn ensure(dir: &Path, busybox: &Path, agnhost: &Path) -> anyhow::Result<ImageSet> {
    let names = ["pause", "busybox", "nonroot", "nonewprivs", "nginx", "ipc-utils", "agnhost"];
    let archives: Vec<PathBuf> =
        names.iter().map(|name| dir.join(name).with_extension("tar")).collect();
    let programs = Programs::find(busybox, agnhost)?;
    let stamp_path = dir.join("made-from");
    let stamp = programs.stamp()?;
    let fresh = std::fs::read_to_string(&stamp_path).is_ok_and(|old| old == stamp)
        && archives.iter().all(|archive| archive.exists());
    if fresh {
        return Ok(ImageSet { archives, made: false });
    }
    std::fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;

    let mut pause = RootFs::default();
    pause.file("pause", 0o755, compile::compile_c(compile::PAUSE_SOURCE, &dir.join("pause"))?);
    let mut euid = RootFs::default();
    euid.file("nnp", 0o4755, compile::compile_c(EUID_SOURCE, &dir.join("euid"))?);
    let shell = compile::compile_c(SHELL_SOURCE, &dir.join("shell"))?;
    let base = || programs.base(&shell);
    let (busybox, mut nginx) = (base()?, base()?);
    nginx.dir("www", 0o755);
    nginx.file("www/index.html", 0o644, NGINX_PAGE.into());
    let (ipc, agnhost) = (programs.ipc(base()?)?, programs.agnhost(base()?)?);
    let image = |references, entrypoint, command, user, root| Image {
        references,
        entrypoint,
        command,
        user,
        root,
    };
    let images = [
        image(PAUSE, &["/pause"], &[], "65535:65535", &pause),
        image(BUSYBOX, &[], &["sh"], "", &busybox),
        image(NONROOT, &["/bin/sh", "-c"], &["sleep 3600"], "1234", &busybox),
        image(NO_NEW_PRIVILEGES, &["/nnp"], &[], "1000", &euid),
        // Debian's nginx would come with a service that starts. Busybox's web server does as well.
        image(NGINX, &[], &["httpd", "-f", "-p", "80", "-h", "/www"], "", &nginx),
        image(IPC, &[], &["sh"], "", &ipc),
        image(AGNHOST, &["/agnhost"], &["pause"], "", &agnhost),
    ];
    for (path, image) in archives.iter().zip(&images) {
        archive::write(path, image)?;
    }
    std::fs::write(&stamp_path, stamp)
        .with_context(|| format!("cannot write {}", stamp_path.display()))?;
    Ok(ImageSet { archives, made: true })
}

/// The programs of this machine that go into the images.
struct Programs<'a> {
    busybox: &'a Path,
    agnhost: &'a Path,
    bash: PathBuf,
    curl: PathBuf,
    netcat: PathBuf,
    hostname: PathBuf,
    ipc: [PathBuf; 3],
}

impl<'a> Programs<'a> {
    fn find(busybox: &'a Path, agnhost: &'a Path) -> anyhow::Result<Self> {
        Ok(Self {
            busybox,
            agnhost,
            bash: find("bash-static")?,
            curl: find("curl")?,
            netcat: find("nc.openbsd")?,
            hostname: find("hostname")?,
            ipc: [find("ipcs")?, find("ipcmk")?, find("ipcrm")?],
        })
    }

    /// A digest of what goes into the images.
    fn stamp(&self) -> anyhow::Result<String> {
        let mut hash = Sha256::new();
        hash.update(FORMAT.to_le_bytes());
        for text in [compile::PAUSE_SOURCE, SHELL_SOURCE, EUID_SOURCE, NGINX_PAGE] {
            hash.update(text);
        }
        for name in [PAUSE, BUSYBOX, NONROOT, NO_NEW_PRIVILEGES, NGINX, IPC, AGNHOST].concat() {
            hash.update(name);
        }
        let files = [self.busybox, self.agnhost, &self.bash, &self.curl, &self.netcat];
        let files = files.into_iter().chain([self.hostname.as_path()]);
        for file in files.chain(self.ipc.iter().map(PathBuf::as_path)) {
            hash.update(read(file)?);
        }
        Ok(archive::hex(&hash.finalize()))
    }

    /// Busybox with a shell that keeps the environment, and bash for scripts that name it.
    fn base(&self, shell: &[u8]) -> anyhow::Result<RootFs> {
        let mut applets = list_applets(self.busybox)?;
        applets.retain(|applet| applet != "sh");
        let mut root = busybox_root(read(self.busybox)?, &applets);
        root.file("bin/sh", 0o755, shell.to_vec());
        root.file("bin/bash", 0o755, read(&self.bash)?);
        Ok(root)
    }

    fn ipc(&self, mut root: RootFs) -> anyhow::Result<RootFs> {
        for (name, program) in ["ipcs", "ipcmk", "ipcrm"].into_iter().zip(&self.ipc) {
            root.replace(&format!("usr/bin/{name}"), 0o755, read(program)?);
            root.remove(&format!("bin/{name}"));
        }
        let programs: Vec<&Path> = self.ipc.iter().map(PathBuf::as_path).collect();
        with_libraries(root, &programs)
    }

    fn agnhost(&self, mut root: RootFs) -> anyhow::Result<RootFs> {
        root.file("agnhost", 0o755, read(self.agnhost)?);
        root.link("agnhost-2", "agnhost");
        root.replace("bin/sh", 0o755, read(&self.bash)?);
        root.replace("bin/nc", 0o755, read(&self.netcat)?);
        root.replace("bin/hostname", 0o755, read(&self.hostname)?);
        root.file("usr/bin/curl", 0o755, read(&self.curl)?);
        // No DNS where these run: names come from the hosts file.
        root.file("etc/nsswitch.conf", 0o644, "hosts: files dns\n".into());
        // For hooks that are asked by HTTPS, which nobody checks.
        let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
        let certificate = rcgen::generate_simple_self_signed(names)?;
        root.file("localhost.crt", 0o644, certificate.cert.pem().into());
        root.file("localhost.key", 0o644, certificate.signing_key.serialize_pem().into());
        let root = with_libraries(root, &[&self.netcat, &self.hostname, &self.curl])?;
        with_name_services(root)
    }
}

/// Debian's directories for executables.
fn find(name: &str) -> anyhow::Result<PathBuf> {
    ["/usr/bin", "/usr/sbin", "/bin", "/sbin"]
        .iter()
        .map(|dir| Path::new(dir).join(name))
        .find(|path| path.is_file())
        .with_context(|| format!("{name} is not installed: run `cargo xtask setup suite` as root"))
}

fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

/// The libraries that programs of this machine are linked with, in the places where they are here.
fn with_libraries(mut root: RootFs, programs: &[&Path]) -> anyhow::Result<RootFs> {
    let output = Command::new("ldd").args(programs).output().context("cannot run ldd")?;
    if !output.status.success() {
        bail!("ldd ended with {}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    }
    for library in libraries(&String::from_utf8_lossy(&output.stdout)) {
        root.replace(library.trim_start_matches('/'), 0o755, read(Path::new(library))?);
    }
    Ok(root)
}

/// The files that `ldd` names.
fn libraries(ldd: &str) -> Vec<&str> {
    let mut libraries: Vec<&str> = ldd
        .lines()
        .filter(|line| line.starts_with('\t'))
        .filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')))
        .collect();
    libraries.sort_unstable();
    libraries.dedup();
    libraries
}

/// What glibc loads when it looks for a host.
fn with_name_services(mut root: RootFs) -> anyhow::Result<RootFs> {
    let dir = match std::env::consts::ARCH {
        "aarch64" => "/lib/aarch64-linux-gnu",
        _ => "/lib/x86_64-linux-gnu",
    };
    for name in ["libnss_files.so.2", "libnss_dns.so.2"] {
        let path = Path::new(dir).join(name);
        // Newer versions of glibc have them built in.
        if path.exists() {
            root.replace(&path.display().to_string()[1..], 0o755, read(&path)?);
        }
    }
    Ok(root)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_taken_from_lines_with_and_without_an_arrow() {
        let ldd = "/usr/bin/curl:\n\tlinux-vdso.so.1 (0x00007ffc)\n\
                   \tlibz.so.1 => /lib/x86_64-linux-gnu/libz.so.1 (0x00007f6b)\n\
                   \t/lib64/ld-linux-x86-64.so.2 (0x00007f6c)\n\
                   /bin/nc:\n\tlibz.so.1 => /lib/x86_64-linux-gnu/libz.so.1 (0x00007f6b)\n\
                   \tlibnone.so => not found\n";
        let expected = ["/lib/x86_64-linux-gnu/libz.so.1", "/lib64/ld-linux-x86-64.so.2"];
        assert_eq!(libraries(ldd), expected);
    }
}
