//! What every mount port has to keep, the real one and the fake alike.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use rubelet_volume_manager::MountPort;

fn mounted(port: &dyn MountPort, directory: &Path) -> Vec<PathBuf> {
    let found = port.mounts_beneath(directory).unwrap();
    found.into_iter().map(|mount| mount.path).collect()
}

pub(crate) fn check(port: &dyn MountPort, temp: &Path) {
    let temp = fs::canonicalize(temp).unwrap();
    mounting_and_unmounting(port, &temp.join("mounting"));
    removal_stops_at_mounts(port, &temp.join("removal"));
    sub_paths_stay_in_their_volume(port, &temp.join("sub-paths"));
    binds_are_found(port, &temp.join("binds"));
}

fn binds_are_found(port: &dyn MountPort, temp: &Path) {
    let (disk, first, second) = (temp.join("disk"), temp.join("first"), temp.join("second"));
    for directory in [&disk, &first, &second] {
        fs::create_dir_all(directory).unwrap();
    }
    assert!(port.bind(&temp.join("missing"), &first, false).is_err());
    assert!(port.bind(&disk, &temp.join("missing"), false).is_err());
    port.bind(&disk, &first, false).unwrap();
    port.bind(&disk, &second, true).unwrap();
    let mut found = port.other_mounts_of(&disk).unwrap();
    found.sort();
    assert_eq!(found, [first.clone(), second.clone()]);
    let read_only: Vec<bool> =
        port.mounts_beneath(temp).unwrap().iter().map(|mount| mount.read_only).collect();
    assert_eq!(read_only, [false, true]);
    for place in [&disk, &first, &second] {
        let last = port.mounts_beneath(place).unwrap().pop();
        assert_eq!(port.mounted_at(place).unwrap(), last, "both ways to ask agree");
    }
    port.unmount(&first).unwrap();
    port.unmount(&second).unwrap();
    assert_eq!(port.other_mounts_of(&disk).unwrap(), Vec::<PathBuf>::new());
}

fn mounting_and_unmounting(port: &dyn MountPort, temp: &Path) {
    let place = temp.join("place");
    fs::create_dir_all(&place).unwrap();
    assert!(port.unmount(&place).is_err(), "nothing is mounted");
    assert!(port.mount_tmpfs(&temp.join("missing"), None).is_err());
    assert_eq!(port.mounted_at(&place).unwrap(), None);
    assert_eq!(port.mounted_at(&temp.join("missing")).unwrap(), None);
    port.mount_tmpfs(&place, Some(1 << 20)).unwrap();
    assert_eq!(port.mounted_at(&place).unwrap(), port.mounts_beneath(&place).unwrap().pop());
    assert_eq!(port.mounted_at(temp).unwrap(), None, "what is beneath does not count");
    let found = port.mounts_beneath(temp).unwrap();
    assert_eq!((found[0].path.as_path(), found[0].fs_type.as_str()), (place.as_path(), "tmpfs"));
    assert_eq!(mounted(port, &temp.join("pla")), Vec::<PathBuf>::new(), "no prefix of a name");
    port.mount_tmpfs(&place, None).unwrap();
    assert_eq!(mounted(port, temp), [place.clone(), place.clone()], "mounts stack");
    port.unmount(&place).unwrap();
    port.unmount(&place).unwrap();
    assert_eq!(mounted(port, temp), Vec::<PathBuf>::new());
}

fn removal_stops_at_mounts(port: &dyn MountPort, temp: &Path) {
    let tree = temp.join("tree");
    fs::create_dir_all(tree.join("mounted/deep")).unwrap();
    fs::write(tree.join("file"), "content").unwrap();
    port.mount_tmpfs(&tree.join("mounted"), None).unwrap();
    assert!(port.remove_tree(&tree).is_err());
    assert!(port.remove_empty_tree(&tree).is_err());
    assert!(tree.join("file").exists(), "nothing is removed when something is mounted");
    port.unmount(&tree.join("mounted")).unwrap();
    assert!(port.remove_empty_tree(&tree).is_err(), "a file with content");
    assert_eq!(fs::read_to_string(tree.join("file")).unwrap(), "content");
    port.remove_tree(&tree).unwrap();
    assert!(!tree.exists());
    port.remove_tree(&tree).unwrap();
    port.remove_empty_tree(&tree).unwrap();
    fs::create_dir_all(tree.join("a/b")).unwrap();
    fs::write(tree.join("a/placeholder"), "").unwrap();
    port.remove_empty_tree(&tree).unwrap();
    assert!(!tree.exists());
}

fn sub_paths_stay_in_their_volume(port: &dyn MountPort, temp: &Path) {
    let (volume, pod) = (temp.join("volume"), temp.join("pod"));
    fs::create_dir_all(&volume).unwrap();
    fs::create_dir_all(&pod).unwrap();
    fs::create_dir_all(temp.join("outside")).unwrap();
    fs::set_permissions(&volume, fs::Permissions::from_mode(0o2777)).unwrap();
    let (target, full) = (Path::new("volume-subpaths/v/c/0"), pod.join("volume-subpaths/v/c/0"));

    let prepare =
        |sub_path: &str| port.prepare_sub_path(&volume, Path::new(sub_path), &pod, target);
    prepare("made").unwrap();
    prepare("made").unwrap();
    assert_eq!(mounted(port, &pod), vec![full.clone()], "once is enough");
    let mode = fs::metadata(volume.join("made")).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o2777, "made with the volume's mode");

    fs::rename(volume.join("made"), volume.join("old")).unwrap();
    prepare("made").unwrap();
    assert_eq!(mounted(port, &pod), vec![full.clone()], "what changed is replaced");
    port.unmount(&full).unwrap();

    symlink("made", volume.join("inside")).unwrap();
    prepare("inside").unwrap();
    port.unmount(&full).unwrap();

    symlink(temp.join("outside"), volume.join("escape")).unwrap();
    assert!(prepare("escape").is_err());
    assert_eq!(mounted(port, &pod), Vec::<PathBuf>::new());
}
