//! The disk, kernel and initial file system that every boot starts from. Made once, never changed:
//! a boot writes to a throw-away layer above the disk.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, bail};

use super::run_tool;
use crate::interrupt::Interrupt;
use crate::{packages, report};

/// Debian packages of the guest, besides the essential ones.
const PACKAGES: [&str; 16] = [
    "criu",
    "curl",
    "dbus",
    "e2fsprogs",
    "iproute2",
    "iptables",
    "jq",
    "kmod",
    "libseccomp2",
    "mount",
    "nfs-common",
    "nfs-kernel-server",
    "procps",
    "systemd",
    "systemd-sysv",
    "util-linux",
];

/// The package that depends on the current kernel for virtual machines.
const KERNEL: &str = "linux-image-cloud-amd64";

/// Modules without which the kernel does not see its disk. Some kernels have some built in.
const DISK_MODULES: [&str; 3] = ["virtio_pci", "virtio_blk", "ext4"];

/// Units that only cost time. The scenario starts what it needs of a file server itself.
const UNWANTED: [&str; 10] = [
    "apt-daily.timer",
    "apt-daily-upgrade.timer",
    "dpkg-db-backup.timer",
    "e2scrub_all.timer",
    "e2scrub_reap.service",
    "nfs-blkmap.service",
    "nfs-server.service",
    "rpcbind.service",
    "rpcbind.socket",
    "systemd-timesyncd.service",
];

/// Runs what is on the work disk, with its words on the console. There is no udev, so systemd knows
/// of no device: the disk is mounted by hand.
const UNIT: &str = "\
[Unit]
Description=The scenario on the work disk
After=basic.target dbus.service systemd-logind.service
OnFailure=poweroff.target

[Service]
Type=oneshot
StandardOutput=tty
StandardError=tty
TTYPath=/dev/ttyS0
ExecStartPre=/bin/mount /dev/vdb /work
ExecStart=/bin/bash /work/guest/main.sh

[Install]
WantedBy=multi-user.target
";

/// What the kernel runs first: it makes the disk visible and goes on there. `order` has the modules,
/// each behind those that it needs.
const INIT: &str = "\
#!/bin/busybox sh
/bin/busybox mount -t devtmpfs dev /dev
while read -r module; do /bin/busybox insmod \"/modules/$module\"; done < /modules/order
tries=0
until [ -b /dev/vda ] || [ $tries -gt 50 ]; do tries=$((tries + 1)); /bin/busybox sleep 0.2; done
/bin/busybox mount -t ext4 /dev/vda /root
exec /bin/busybox switch_root /root /lib/systemd/systemd
";

/// What the virtual machine boots from.
#[derive(Debug)]
pub(crate) struct Image {
    pub(crate) disk: PathBuf,
    pub(crate) kernel: PathBuf,
    pub(crate) initrd: PathBuf,
}

impl Image {
    fn at(directory: &Path) -> Self {
        Self {
            disk: directory.join("disk.img"),
            kernel: directory.join("vmlinuz"),
            initrd: directory.join("initrd.gz"),
        }
    }
}

/// Makes the image unless it is there.
pub(crate) fn ensure(directory: &Path, interrupt: &Interrupt) -> anyhow::Result<Image> {
    let suite = debian_suite()?;
    let made_from = format!("{suite}\n{PACKAGES:?}\n{UNWANTED:?}\n{UNIT}\n{INIT}");
    let place = directory.join("image");
    let stamp = place.join("made-from");
    if fs::read_to_string(&stamp).is_ok_and(|stamp| stamp == made_from) {
        return Ok(Image::at(&place));
    }
    let started = Instant::now();
    report::begin(format_args!("making a Debian {suite} image (once, a minute or two)"));
    remove(&place)?;
    let partial = directory.join("image.partial");
    remove(&partial)?;
    fs::create_dir_all(&partial).with_context(|| format!("cannot make {}", partial.display()))?;
    make(&partial, &suite, interrupt).inspect_err(|_| report::end("failed"))?;
    fs::write(partial.join("made-from"), made_from).context("cannot write the image's stamp")?;
    fs::rename(&partial, &place).context("cannot put the image in its place")?;
    report::end(format_args!("{} s", started.elapsed().as_secs()));
    Ok(Image::at(&place))
}

/// The guest is what this machine is: what was built here has to run there.
fn debian_suite() -> anyhow::Result<String> {
    let text = fs::read_to_string("/etc/os-release").context("cannot read /etc/os-release")?;
    let field = |name: &str| {
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='))?;
        Some(value.trim_matches('"').to_owned())
    };
    if field("ID").as_deref() != Some("debian") {
        bail!("the virtual machine's disk is made from this machine's Debian, and this is none");
    }
    field("VERSION_CODENAME").context("/etc/os-release names no VERSION_CODENAME")
}

fn make(directory: &Path, suite: &str, interrupt: &Interrupt) -> anyhow::Result<()> {
    let image = Image::at(directory);
    let (kernel, root) = (directory.join("kernel"), directory.join("root"));
    let version = unpack_kernel(directory, &kernel)?;
    fs::copy(kernel.join(format!("boot/vmlinuz-{version}")), &image.kernel)
        .context("the kernel's package has no kernel")?;
    interrupt.check()?;

    let bootstrap = run_tool(
        Command::new("debootstrap")
            .args(["--variant=minbase", &format!("--include={}", PACKAGES.join(","))])
            .arg(suite)
            .arg(&root)
            .arg(mirror(suite)?),
    );
    // It tells what it does on its output, and there is much of it.
    bootstrap
        .with_context(|| format!("see {}", root.join("debootstrap/debootstrap.log").display()))?;
    interrupt.check()?;

    let modules = format!("lib/modules/{version}");
    fs::create_dir_all(root.join("lib/modules")).context("cannot make /lib/modules")?;
    fs::rename(kernel.join(&modules), root.join(&modules))
        .context("cannot move the kernel's modules")?;
    run_tool(Command::new("depmod").arg("-b").arg(&root).arg(&version))?;
    configure(&root)?;

    make_initrd(directory, &root, &version, &image.initrd)?;
    let disk = fs::File::create(&image.disk).context("cannot make the disk")?;
    disk.set_len(3 << 30).context("cannot make the disk")?;
    run_tool(
        Command::new("mke2fs")
            .args(["-q", "-t", "ext4", "-O", "^has_journal", "-d"])
            .arg(&root)
            .arg(&image.disk),
    )?;
    for scaffold in [&kernel, &root, &directory.join("initrd")] {
        remove(scaffold)?;
    }
    Ok(())
}

/// Unpacks the current kernel's package, and returns the kernel's version.
fn unpack_kernel(directory: &Path, place: &Path) -> anyhow::Result<String> {
    let depends = run_tool(Command::new("apt-cache").args(["depends", KERNEL]))
        .with_context(|| format!("{KERNEL} is unknown to apt"))?;
    let package = depends
        .split_whitespace()
        .find(|word| word.starts_with("linux-image-") && *word != KERNEL)
        .with_context(|| format!("{KERNEL} depends on no kernel"))?
        .to_owned();
    run_tool(Command::new("apt-get").current_dir(directory).args(["download", &package]))?;
    let archive = fs::read_dir(directory)
        .context("cannot look for the kernel's package")?
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.extension().is_some_and(|extension| extension == "deb"))
        .with_context(|| format!("apt-get did not download {package}"))?;
    run_tool(Command::new("dpkg-deb").arg("-x").arg(&archive).arg(place))?;
    fs::remove_file(&archive).context("cannot remove the kernel's package")?;
    let version = package.trim_start_matches("linux-image-").trim_end_matches("-unsigned");
    Ok(version.to_owned())
}

/// Where this machine's apt gets the suite from.
fn mirror(suite: &str) -> anyhow::Result<String> {
    let targets = run_tool(Command::new("apt-get").args([
        "indextargets",
        "--format",
        "$(SITE) $(RELEASE) $(COMPONENT)",
        "Created-By: Packages",
    ]))?;
    let found = targets.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        let (site, release, component) = (words.next()?, words.next()?, words.next()?);
        (release == suite && component == "main").then(|| site.to_owned())
    });
    found.with_context(|| format!("apt knows no source of {suite} main"))
}

fn configure(root: &Path) -> anyhow::Result<()> {
    let units = root.join("etc/systemd/system");
    let write = |path: PathBuf, content: &str| {
        fs::write(&path, content).with_context(|| format!("cannot write {}", path.display()))
    };
    let link = |target: &str, path: PathBuf| {
        // The package may have brought one.
        let _ = fs::remove_file(&path);
        symlink(target, &path).with_context(|| format!("cannot make {}", path.display()))
    };
    write(units.join("scenario.service"), UNIT)?;
    let wants = units.join("multi-user.target.wants");
    fs::create_dir_all(&wants).with_context(|| format!("cannot make {}", wants.display()))?;
    link("/etc/systemd/system/scenario.service", wants.join("scenario.service"))?;
    for unit in UNWANTED {
        link("/dev/null", units.join(unit))?;
    }
    // Nobody is there to mend it.
    link("/lib/systemd/system/poweroff.target", units.join("emergency.target"))?;
    write(root.join("etc/fstab"), "")?;
    write(root.join("etc/hostname"), "node\n")?;
    write(root.join("etc/hosts"), "127.0.0.1 localhost node\n")?;
    write(root.join("etc/resolv.conf"), "")?;
    fs::create_dir_all(root.join("work")).context("cannot make /work")?;
    Ok(())
}

fn make_initrd(directory: &Path, root: &Path, version: &str, target: &Path) -> anyhow::Result<()> {
    let place = directory.join("initrd");
    for name in ["bin", "dev", "root", "modules"] {
        let path = place.join(name);
        fs::create_dir_all(&path).with_context(|| format!("cannot make {}", path.display()))?;
    }
    let busybox = packages::busybox().context("busybox is not to be found")?;
    fs::copy(busybox, place.join("bin/busybox")).context("cannot copy busybox")?;
    let mut order = String::new();
    for name in disk_modules(root, version)? {
        let module = Path::new(&name);
        let file = module.file_name().context("a module has no name")?.to_string_lossy();
        fs::copy(module, place.join("modules").join(&*file))
            .with_context(|| format!("cannot copy {name}"))?;
        order.push_str(&file);
        order.push('\n');
    }
    fs::write(place.join("modules/order"), order).context("cannot write the list of modules")?;
    let script = place.join("init");
    fs::write(&script, INIT).context("cannot write the initial script")?;
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755))
        .context("cannot make the initial script executable")?;
    let archive = directory.join("initrd.cpio");
    run_tool(Command::new("sh").current_dir(&place).args([
        "-c",
        "find . | cpio -o -H newc --quiet > ../initrd.cpio && gzip -1 ../initrd.cpio",
    ]))?;
    fs::rename(archive.with_extension("cpio.gz"), target).context("cannot place the initrd")
}

/// Files of the modules for the disk, each behind those that it needs.
fn disk_modules(root: &Path, version: &str) -> anyhow::Result<Vec<String>> {
    let said = run_tool(
        Command::new("modprobe")
            .arg("--dirname")
            .arg(root)
            .args(["--set-version", version, "--show-depends", "--all"])
            .args(DISK_MODULES),
    )?;
    Ok(loading_order(&said))
}

fn loading_order(said: &str) -> Vec<String> {
    let mut files: Vec<String> = Vec::new();
    for line in said.lines() {
        let file = line.strip_prefix("insmod ").and_then(|rest| rest.split_whitespace().next());
        if let Some(file) = file.filter(|file| !files.iter().any(|known| known == file)) {
            files.push(file.to_owned());
        }
    }
    files
}

/// Removes a directory tree, if it is there. Nothing is mounted in what we make.
fn remove(path: &Path) -> anyhow::Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", path.display()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_come_once_and_behind_what_they_need() {
        let said = "insmod /m/virtio_ring.ko \ninsmod /m/virtio.ko \ninsmod /m/virtio_pci.ko force=1\n\
                    insmod /m/virtio_ring.ko \ninsmod /m/virtio_blk.ko \nbuiltin ext4\n";
        assert_eq!(
            loading_order(said),
            ["/m/virtio_ring.ko", "/m/virtio.ko", "/m/virtio_pci.ko", "/m/virtio_blk.ko"]
        );
    }
}
