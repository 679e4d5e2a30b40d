use std::fs;
use std::os::unix::fs::symlink;

use super::*;

struct Directory {
    root: tempfile::TempDir,
    files: ManifestFiles,
    second: i64,
}

fn policy() -> StaticPodPolicy {
    StaticPodPolicy { node_name: "node".to_owned(), prevent_api_references: true }
}

fn manifest(name: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\nspec:\n  containers:\n  - name: \
         c\n    image: nginx:1\n"
    )
}

impl Directory {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let files = ManifestFiles::new(root.path().to_owned(), policy());
        // Far after any change of a file: fingerprints count.
        Self { root, files, second: 4_000_000_000 }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    fn write(&self, name: &str, content: &str) {
        fs::write(self.path(name), content).unwrap();
    }

    fn rescan(&mut self) -> Scan {
        self.second += 10;
        self.files.rescan(&BTreeSet::new(), Timestamp::from_second(self.second).unwrap())
    }

    fn names(&self) -> Vec<String> {
        self.files.pods().into_iter().filter_map(|pod| pod.metadata.name).collect()
    }
}

/// What an operator is told, without the temporary directory.
fn told(scan: &Scan) -> Vec<String> {
    let name = |path: &Path| path.file_name().unwrap().to_string_lossy().into_owned();
    scan.notices
        .iter()
        .map(|notice| match notice {
            Notice::Skipped { path, error, kept } => {
                format!("{}: {error}{}", name(path), if *kept { " (kept)" } else { "" })
            }
            Notice::Warnings { path, warnings } => format!("{}: {warnings:?}", name(path)),
            Notice::Unlistable { error, .. } => format!("unlistable: {error}"),
        })
        .collect()
}

#[test]
fn a_directory_is_read_in_order_without_hidden_files_and_subdirectories() {
    let mut directory = Directory::new();
    directory.write("b.yaml", &manifest("b"));
    directory.write("a.json", &manifest("a"));
    directory.write(".hidden.yaml", &manifest("hidden"));
    fs::create_dir(directory.path("sub")).unwrap();
    fs::write(directory.path("sub/c.yaml"), manifest("c")).unwrap();
    let scan = directory.rescan();
    assert!(scan.changed);
    assert_eq!(directory.names(), ["a-node", "b-node"]);
    assert_eq!(told(&scan), ["sub: it is a directory, not a regular file; it is never opened"]);
    let scan = directory.rescan();
    assert!(!scan.changed && scan.notices.is_empty(), "nothing new: {scan:?}");
}

#[test]
fn a_missing_path_is_an_empty_set_and_may_come_later() {
    let mut directory = Directory::new();
    directory.files = ManifestFiles::new(directory.path("later"), policy());
    assert!(directory.rescan().changed, "the source has spoken");
    assert_eq!(directory.names(), [] as [&str; 0]);
    assert!(!directory.rescan().changed);
    directory.write("later", &manifest("one"));
    assert!(directory.rescan().changed);
    assert_eq!(directory.names(), ["one-node"]);
    fs::remove_file(directory.path("later")).unwrap();
    assert!(directory.rescan().changed);
    assert_eq!(directory.names(), [] as [&str; 0]);
}

#[test]
fn a_bad_file_is_reported_once_per_content_and_touches_nobody() {
    let mut directory = Directory::new();
    directory.write("good.yaml", &manifest("good"));
    directory.write("bad.yaml", "kind: [");
    let scan = directory.rescan();
    assert_eq!(directory.names(), ["good-node"]);
    let first = told(&scan);
    assert!(
        first.len() == 1 && first[0].starts_with("bad.yaml: couldn't parse as pod(line "),
        "{first:?}"
    );
    for _ in 0..3 {
        let scan = directory.rescan();
        assert!(!scan.changed && scan.notices.is_empty());
    }
    // Written anew with the same content: nothing new to say.
    directory.write("bad.yaml", "kind: [");
    assert!(directory.rescan().notices.is_empty());
    directory.write("bad.yaml", "kind: {");
    assert_eq!(directory.rescan().notices.len(), 1);
    directory.write("bad.yaml", &manifest("mended"));
    assert!(directory.rescan().changed);
    assert_eq!(directory.names(), ["mended-node", "good-node"]);
}

#[test]
fn a_half_written_file_keeps_its_last_good_pod() {
    let mut directory = Directory::new();
    let whole = manifest("a");
    directory.write("a.yaml", &whole);
    directory.rescan();
    let uid = directory.files.pods()[0].metadata.uid.clone();
    for broken in ["", &whole[..whole.len() / 3], "kind: Service\napiVersion: v1\n", "\0"] {
        directory.write("a.yaml", broken);
        let scan = directory.rescan();
        assert!(!scan.changed, "{broken:?}");
        assert!(told(&scan)[0].ends_with("(kept)"), "{:?}", told(&scan));
        assert_eq!(directory.files.pods()[0].metadata.uid, uid);
    }
    directory.write("a.yaml", &whole);
    assert!(!directory.rescan().changed, "it is the same again");
    fs::remove_file(directory.path("a.yaml")).unwrap();
    assert!(directory.rescan().changed);
    assert_eq!(directory.names(), [] as [&str; 0]);
}

#[test]
fn the_same_size_at_the_same_time_is_still_noticed() {
    let mut directory = Directory::new();
    directory.write("a.yaml", &manifest("aaa"));
    let modified = fs::metadata(directory.path("a.yaml")).unwrap().modified().unwrap();
    // Read at the very second of the change: the file may change again within it.
    let second = fs::metadata(directory.path("a.yaml")).unwrap().ctime();
    let now = Timestamp::from_second(second).unwrap();
    directory.files.rescan(&BTreeSet::new(), now);
    directory.write("a.yaml", &manifest("bbb"));
    let file = File::options().write(true).open(directory.path("a.yaml")).unwrap();
    file.set_modified(modified).unwrap();
    assert!(directory.files.rescan(&BTreeSet::new(), now).changed);
    assert_eq!(directory.names(), ["bbb-node"]);
}

#[test]
fn special_files_are_never_opened() {
    let mut directory = Directory::new();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        directory.path("fifo.yaml"),
        rustix::fs::FileType::Fifo,
        Mode::RUSR,
        0,
    )
    .unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(directory.path("socket.yaml")).unwrap();
    symlink("/dev/zero", directory.path("zero.yaml")).unwrap();
    symlink("nowhere", directory.path("dangling.yaml")).unwrap();
    symlink("loop.yaml", directory.path("loop.yaml")).unwrap();
    directory.write("good.yaml", &manifest("good"));
    let scan = directory.rescan();
    assert_eq!(directory.names(), ["good-node"]);
    let told = told(&scan);
    for expected in [
        "fifo.yaml: it is a named pipe, not a regular file; it is never opened",
        "socket.yaml: it is a socket, not a regular file; it is never opened",
        "zero.yaml: it is a device, not a regular file; it is never opened",
    ] {
        assert!(told.iter().any(|text| text == expected), "{expected} in {told:?}");
    }
    assert!(told.iter().any(|text| text.starts_with("loop.yaml: cannot read")), "{told:?}");
    assert!(directory.rescan().notices.is_empty());
}

#[test]
fn a_mounted_config_map_is_followed() {
    let mut directory = Directory::new();
    for (version, name) in [("..v1", "one"), ("..v2", "two")] {
        fs::create_dir(directory.path(version)).unwrap();
        fs::write(directory.path(version).join("pod.yaml"), manifest(name)).unwrap();
    }
    symlink("..v1", directory.path("..data")).unwrap();
    symlink("..data/pod.yaml", directory.path("pod.yaml")).unwrap();
    directory.rescan();
    assert_eq!(directory.names(), ["one-node"]);
    symlink("..v2", directory.path("..data_tmp")).unwrap();
    fs::rename(directory.path("..data_tmp"), directory.path("..data")).unwrap();
    assert!(directory.rescan().changed);
    assert_eq!(directory.names(), ["two-node"]);
}

#[test]
fn unsettled_files_stay_as_they_were() {
    let mut directory = Directory::new();
    directory.write("a.yaml", &manifest("a"));
    directory.rescan();
    fs::remove_file(directory.path("a.yaml")).unwrap();
    directory.write("b.yaml", &manifest("b"));
    let unsettled = BTreeSet::from([directory.path("a.yaml"), directory.path("b.yaml")]);
    let now = Timestamp::from_second(directory.second).unwrap();
    assert!(!directory.files.rescan(&unsettled, now).changed);
    assert_eq!(directory.names(), ["a-node"]);
    assert!(directory.rescan().changed);
    assert_eq!(directory.names(), ["b-node"]);
}

#[test]
fn a_path_that_cannot_be_listed_keeps_its_pods() {
    let mut directory = Directory::new();
    directory.write("dir", "");
    directory.files = ManifestFiles::new(directory.path("dir/below"), policy());
    let scan = directory.rescan();
    assert!(!scan.changed, "not known is not empty");
    assert_eq!(told(&scan), ["unlistable: Not a directory (os error 20)"]);
    assert!(directory.rescan().notices.is_empty());
}

#[test]
fn a_file_that_is_too_large_is_refused() {
    let mut directory = Directory::new();
    let file = File::create(directory.path("big.yaml")).unwrap();
    file.set_len(1 << 40).unwrap();
    let scan = directory.rescan();
    assert_eq!(
        told(&scan),
        ["big.yaml: couldn't parse as pod(the manifest is larger than 10485760 bytes), please \
          check config file"]
    );
}

#[test]
fn ten_thousand_junk_files_are_read_once() {
    let mut directory = Directory::new();
    for index in 0..10_000 {
        directory.write(&format!("junk{index}"), "junk\n");
    }
    directory.write("pod.yaml", &manifest("pod"));
    assert_eq!(directory.rescan().notices.len(), 10_000);
    assert_eq!(directory.names(), ["pod-node"]);
    let scan = directory.rescan();
    assert!(!scan.changed && scan.notices.is_empty());
}
