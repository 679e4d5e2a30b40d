use std::os::unix::fs::PermissionsExt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::*;
use crate::testing::{GO_EC_KEY, GO_EC_PUBLIC_KEY, Made, at, certificate};

const STEPS: [UpdateStep; 7] = [
    UpdateStep::Write,
    UpdateStep::Verify,
    UpdateStep::RemoveStale,
    UpdateStep::Link,
    UpdateStep::KeepFile,
    UpdateStep::Rename,
    UpdateStep::Flush,
];

struct Ground {
    directory: tempfile::TempDir,
    store: CertificateStore,
}

impl Ground {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let store = open(&directory.path().join("pki"));
        Self { directory, store }
    }

    fn pki(&self) -> PathBuf {
        self.directory.path().join("pki")
    }

    /// The common name of the pair in use, as a new process finds it.
    fn current(&self) -> Option<String> {
        let pair = open(&self.pki()).current(at(50)).unwrap();
        pair.map(|pair| pair.leaf().common_name.clone())
    }

    fn files(&self) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(self.pki())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

fn open(directory: &Path) -> CertificateStore {
    CertificateStore::open(directory, Purpose::Client, None).unwrap()
}

fn made(name: &str) -> Made {
    certificate(name, at(0), at(100), &[])
}

fn pair(name: &str) -> CertificatePair {
    let pem = made(name).pem();
    CertificatePair::from_pem(pem.as_bytes(), pem.as_bytes()).unwrap()
}

#[test]
fn the_layout_is_upstreams() {
    let ground = Ground::new();
    assert_eq!(ground.current(), None);
    ground.store.update(&pair("one"), at(1)).unwrap();
    assert_eq!(ground.current().as_deref(), Some("one"));
    let files = ground.files();
    assert_eq!(files.len(), 2, "{files:?}");
    assert_eq!(files[1], "kubelet-client-current.pem");
    assert!(ground.store.has_time(&files[0]), "{files:?}");
    let target = fs::read_link(ground.store.current_path()).unwrap();
    assert_eq!(target, ground.pki().join(&files[0]));
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&target), 0o600);

    ground.store.update(&pair("two"), at(2)).unwrap();
    assert_eq!(ground.current().as_deref(), Some("two"));
    assert_eq!(ground.files().len(), 3);
    // Twice within one second: the file that the link points at is replaced as a whole.
    ground.store.update(&pair("three"), at(2)).unwrap();
    assert_eq!(ground.current().as_deref(), Some("three"));
    assert_eq!(ground.files().len(), 3);

    let serving = CertificateStore::open(&ground.pki(), Purpose::Serving, None).unwrap();
    assert!(serving.current(at(50)).unwrap().is_none());
    serving.update(&pair("server"), at(3)).unwrap();
    assert!(ground.files().contains(&"kubelet-server-current.pem".to_owned()));
    assert_eq!(ground.current().as_deref(), Some("three"));
}

impl CertificateStore {
    fn has_time(&self, name: &str) -> bool {
        let time = name.strip_prefix("kubelet-client-").and_then(|it| it.strip_suffix(".pem"));
        time.is_some_and(|time| jiff::civil::DateTime::strptime(TIME_IN_NAMES, time).is_ok())
    }
}

#[test]
fn a_crash_between_any_two_steps_leaves_a_pair() {
    for first in [true, false] {
        for crashing in STEPS {
            let ground = Ground::new();
            if !first {
                ground.store.update(&pair("old"), at(1)).unwrap();
            }
            // Unwinding cleans nothing up in between: it leaves what a kill would.
            let crashed = catch_unwind(AssertUnwindSafe(|| {
                ground.store.update_stepwise(&pair("new"), at(2), |step| {
                    assert!(step != crashing, "crash");
                    Ok(())
                })
            }));
            assert!(crashed.is_err());
            let linked = matches!(crashing, UpdateStep::KeepFile | UpdateStep::Rename);
            let expected = match crashing {
                UpdateStep::Flush => Some("new"),
                // The link that was made is found, as there is no other.
                _ if first => linked.then_some("new"),
                _ => Some("old"),
            };
            assert_eq!(ground.current().as_deref(), expected, "{first} {crashing:?}");
            ground.store.update(&pair("newer"), at(3)).unwrap();
            assert_eq!(ground.current().as_deref(), Some("newer"), "{first} {crashing:?}");
            let files = ground.files();
            assert!(!files.iter().any(|name| name.contains("updated")), "{files:?}");
        }
    }
}

#[test]
fn a_failed_step_leaves_the_pair_before_in_use() {
    for failing in STEPS {
        let ground = Ground::new();
        ground.store.update(&pair("old"), at(1)).unwrap();
        let failed = ground.store.update_stepwise(&pair("new"), at(2), |step| {
            let full = io::ErrorKind::StorageFull.into();
            if step == failing { Err(changing("write", Path::new("x"), full)) } else { Ok(()) }
        });
        assert!(failed.is_err());
        let expected = if failing == UpdateStep::Flush { "new" } else { "old" };
        assert_eq!(ground.current().as_deref(), Some(expected), "{failing:?}");
    }
}

#[test]
fn what_an_interrupted_go_kubelet_left_is_finished() {
    let ground = Ground::new();
    ground.store.update(&pair("old"), at(1)).unwrap();
    // It removes the link before it renames the new one.
    fs::rename(ground.store.current_path(), ground.store.named(UPDATED)).unwrap();
    assert_eq!(ground.current().as_deref(), Some("old"));
    assert!(!ground.files().iter().any(|name| name.contains("updated")));
}

#[test]
fn without_a_link_older_files_are_not_dug_out() {
    // Removing the link is how an administrator asks for a new certificate.
    let ground = Ground::new();
    ground.store.update(&pair("old"), at(1)).unwrap();
    fs::remove_file(ground.store.current_path()).unwrap();
    assert_eq!(ground.current(), None);
    // A link that leads nowhere is none.
    symlink(ground.pki().join("gone.pem"), ground.store.current_path()).unwrap();
    assert_eq!(ground.current(), None);
    ground.store.update(&pair("new"), at(2)).unwrap();
    assert_eq!(ground.current().as_deref(), Some("new"));
}

#[test]
fn a_damaged_pair_is_set_aside_and_the_one_before_takes_its_place() {
    let damages: [Vec<u8>; 4] = [
        Vec::new(),
        b"rubbish".to_vec(),
        made("x").certificate.into_bytes(),
        format!("{}{}", made("x").certificate, made("y").key).into_bytes(),
    ];
    for damage in damages {
        let ground = Ground::new();
        ground.store.update(&pair("oldest"), at(1)).unwrap();
        ground.store.update(&pair("older"), at(2)).unwrap();
        ground.store.update(&pair("newest"), at(3)).unwrap();
        let newest = fs::read_link(ground.store.current_path()).unwrap();
        fs::write(&newest, &damage).unwrap();
        assert_eq!(ground.current().as_deref(), Some("older"));
        let mut aside = newest.into_os_string();
        aside.push(".damaged-1");
        assert_eq!(fs::read(&aside).unwrap(), damage);
        // And it stays so.
        assert_eq!(ground.current().as_deref(), Some("older"));
        ground.store.update(&pair("repaired"), at(4)).unwrap();
        assert_eq!(ground.current().as_deref(), Some("repaired"));
    }
}

#[test]
fn an_expired_pair_takes_nobodys_place() {
    let ground = Ground::new();
    let expired = certificate("expired", at(0), at(49), &[]).pem();
    let expired = CertificatePair::from_pem(expired.as_bytes(), expired.as_bytes()).unwrap();
    ground.store.update(&expired, at(1)).unwrap();
    ground.store.update(&pair("newest"), at(2)).unwrap();
    fs::write(fs::read_link(ground.store.current_path()).unwrap(), "").unwrap();
    assert_eq!(ground.current(), None);
    assert_eq!(ground.current(), None);
    let aside = ground.files().into_iter().filter(|name| name.contains("damaged")).count();
    assert_eq!(aside, 1);
}

#[test]
fn an_administrators_file_behind_the_link_is_left_alone() {
    let ground = Ground::new();
    fs::create_dir(ground.pki()).unwrap();
    let theirs = ground.directory.path().join("theirs.pem");
    fs::write(&theirs, "rubbish").unwrap();
    symlink(&theirs, ground.store.current_path()).unwrap();
    assert_eq!(ground.current(), None);
    assert_eq!(fs::read_to_string(&theirs).unwrap(), "rubbish");
    fs::write(&theirs, made("theirs").pem()).unwrap();
    assert_eq!(ground.current().as_deref(), Some("theirs"));
}

#[test]
fn a_file_in_the_place_of_the_link_is_used_and_kept() {
    let ground = Ground::new();
    fs::create_dir(ground.pki()).unwrap();
    let put = made("put").pem();
    fs::write(ground.store.current_path(), &put).unwrap();
    assert_eq!(ground.current().as_deref(), Some("put"));
    ground.store.update(&pair("new"), at(1)).unwrap();
    assert_eq!(ground.current().as_deref(), Some("new"));
    let kept = ground.pki().join("kubelet-client-current.pem.replaced");
    assert_eq!(fs::read_to_string(kept).unwrap(), put);
}

#[test]
fn something_else_under_the_name_of_the_new_link_is_an_error() {
    let ground = Ground::new();
    ground.store.update(&pair("old"), at(1)).unwrap();
    fs::write(ground.store.named(UPDATED), "precious").unwrap();
    let failed = ground.store.update(&pair("new"), at(2)).unwrap_err();
    assert!(matches!(failed, StoreError::NotALink { .. }), "{failed}");
    assert_eq!(ground.current().as_deref(), Some("old"));
}

#[test]
fn given_files_serve_until_there_is_a_pair_of_our_own() {
    let ground = Ground::new();
    let file = |name: &str| ground.directory.path().join(name);
    let given = PairFiles { certificate: file("tls.crt"), key: file("tls.key") };
    let store = CertificateStore::open(&ground.pki(), Purpose::Client, Some(given)).unwrap();
    let current = || store.current(at(50)).unwrap().map(|pair| pair.leaf().common_name.clone());
    assert_eq!(current(), None);
    let old = made("old layout");
    fs::create_dir(ground.pki()).unwrap();
    fs::write(ground.pki().join("kubelet-client.crt"), &old.certificate).unwrap();
    fs::write(ground.pki().join("kubelet-client.key"), &old.key).unwrap();
    assert_eq!(current().as_deref(), Some("old layout"));
    let theirs = made("given");
    fs::write(file("tls.crt"), &theirs.certificate).unwrap();
    assert_eq!(current().as_deref(), Some("old layout"));
    fs::write(file("tls.key"), &theirs.key).unwrap();
    assert_eq!(current().as_deref(), Some("given"));
    fs::write(file("tls.key"), &old.key).unwrap();
    assert_eq!(current().as_deref(), Some("old layout"));
    store.update(&pair("ours"), at(1)).unwrap();
    assert_eq!(current().as_deref(), Some("ours"));
    assert_eq!(fs::read_to_string(file("tls.crt")).unwrap(), theirs.certificate);
}

#[test]
fn the_key_of_a_first_request_is_kept_until_it_is_removed() {
    let ground = Ground::new();
    let path = ground.pki().join("kubelet-client.key.tmp");
    let key = ground.store.load_or_generate_key().unwrap();
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let again = ground.store.load_or_generate_key().unwrap();
    assert_eq!(again.public_key_info(), key.public_key_info());
    let other = ground.store.generate_key().unwrap();
    assert_ne!(other.public_key_info(), key.public_key_info());

    fs::write(&path, GO_EC_KEY).unwrap();
    let go = ground.store.load_or_generate_key().unwrap();
    assert_eq!(go.public_key_info(), GO_EC_PUBLIC_KEY);

    fs::write(&path, "rubbish").unwrap();
    ground.store.load_or_generate_key().unwrap();
    let aside = ground.pki().join("kubelet-client.key.tmp.damaged-1");
    assert_eq!(fs::read_to_string(aside).unwrap(), "rubbish");

    ground.store.remove_key().unwrap();
    ground.store.remove_key().unwrap();
    assert!(!path.exists());
}
