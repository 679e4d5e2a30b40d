use std::fs::{self, DirBuilder, FileType, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, OpenOptionsExt};

use rubelet_volume_plan::{HostPathType, HostPathVolume};

use crate::error::SetUpError;

/// Checks that at the path is what the pod expects; makes it where the type says so. Follows links,
/// as the container's mount does.
pub(crate) fn set_up_host_path(volume: &HostPathVolume) -> Result<(), SetUpError> {
    let HostPathVolume { path, path_type } = volume;
    if *path_type == HostPathType::Unset {
        return Ok(());
    }
    let found = fs::metadata(path).map(|metadata| metadata.file_type());
    match (&found, path_type) {
        (Err(_), HostPathType::DirectoryOrCreate) => DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(path)
            .map_err(SetUpError::io("create directory", path)),
        (Err(_), HostPathType::FileOrCreate) => create_file(path),
        (Ok(found), _) if is_of_type(*found, *path_type) => Ok(()),
        _ => Err(SetUpError::HostPathType { path: path.clone(), noun: path_type.noun() }),
    }
}

fn create_file(path: &str) -> Result<(), SetUpError> {
    match OpenOptions::new().write(true).create_new(true).mode(0o644).open(path) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(SetUpError::io("create file", path)(error)),
    }
}

fn is_of_type(found: FileType, wanted: HostPathType) -> bool {
    match wanted {
        HostPathType::Unset => true,
        HostPathType::DirectoryOrCreate | HostPathType::Directory => found.is_dir(),
        HostPathType::FileOrCreate | HostPathType::File => found.is_file(),
        HostPathType::Socket => found.is_socket(),
        HostPathType::CharDevice => found.is_char_device(),
        HostPathType::BlockDevice => found.is_block_device(),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::os::unix::net::UnixListener;
    use std::path::Path;

    use super::*;

    fn check(path: &Path, path_type: HostPathType) -> Result<(), String> {
        let path = path.to_str().unwrap().to_owned();
        set_up_host_path(&HostPathVolume { path, path_type }).map_err(|error| error.to_string())
    }

    #[test]
    fn every_type_accepts_its_own_kind_only() {
        let temp = tempfile::tempdir().unwrap();
        let at = |name: &str| temp.path().join(name);
        fs::create_dir(at("dir")).unwrap();
        fs::write(at("file"), "").unwrap();
        let _listener = UnixListener::bind(at("sock")).unwrap();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            at("fifo"),
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR,
            0,
        )
        .unwrap();
        symlink(at("dir"), at("link-to-dir")).unwrap();
        symlink(at("nowhere"), at("dead-link")).unwrap();
        let kinds = [
            (at("dir"), "dir"),
            (at("link-to-dir"), "dir"),
            (at("file"), "file"),
            (at("sock"), "sock"),
            (at("fifo"), "fifo"),
            (at("missing"), "missing"),
            (at("dead-link"), "missing"),
            ("/dev/null".into(), "char"),
        ];
        for (path_type, accepted, noun) in [
            (HostPathType::Directory, "dir", "directory"),
            (HostPathType::File, "file", "file"),
            (HostPathType::Socket, "sock", "socket file"),
            (HostPathType::CharDevice, "char", "character device"),
            (HostPathType::BlockDevice, "block", "block device"),
        ] {
            for (path, kind) in &kinds {
                let expected = if *kind == accepted {
                    Ok(())
                } else {
                    Err(format!("hostPath type check failed: {} is not a {noun}", path.display()))
                };
                assert_eq!(check(path, path_type), expected, "{kind} as {path_type:?}");
            }
        }
        for (path, kind) in &kinds {
            assert_eq!(check(path, HostPathType::Unset), Ok(()), "{kind}");
        }
    }

    #[test]
    fn what_is_missing_is_made_and_what_is_there_is_kept() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("a/b");
        assert_eq!(check(&dir, HostPathType::DirectoryOrCreate), Ok(()));
        assert_eq!(fs::metadata(&dir).unwrap().permissions().mode() & 0o777, 0o755);
        assert_eq!(check(&dir, HostPathType::DirectoryOrCreate), Ok(()));
        let file = dir.join("f");
        assert_eq!(check(&file, HostPathType::FileOrCreate), Ok(()));
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o644);
        fs::write(&file, "kept").unwrap();
        assert_eq!(check(&file, HostPathType::FileOrCreate), Ok(()));
        assert_eq!(fs::read_to_string(&file).unwrap(), "kept");
        assert!(
            check(&file, HostPathType::DirectoryOrCreate).unwrap_err().contains("not a directory")
        );
        assert!(check(&dir, HostPathType::FileOrCreate).unwrap_err().contains("not a file"));
    }
}
