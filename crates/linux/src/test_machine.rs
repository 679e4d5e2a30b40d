//! A machine that is made up of files, for tests.

use std::fs;

use crate::Host;

/// A machine whose files are these alone. It ends with the directory.
pub(crate) fn machine(files: &[(&str, &str)]) -> (tempfile::TempDir, Host) {
    let temp = tempfile::tempdir().unwrap();
    for (path, content) in files {
        let path = temp.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
    let host = Host::at(temp.path());
    (temp, host)
}
