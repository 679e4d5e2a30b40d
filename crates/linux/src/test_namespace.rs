//! Lets a test mount what it likes, in a mount namespace that ends with it.

use std::process::Command;

const MARK: &str = "RUBELET_TEST_IN_PRIVATE_MOUNT_NAMESPACE";

/// Runs `body` in a process of its own, in a mount namespace of its own. `test` is the full name of
/// the calling test, which the new process runs again.
pub(crate) fn in_private_mount_namespace(test: &str, body: fn()) {
    if std::env::var_os(MARK).is_some() {
        return body();
    }
    let output = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "--"])
        .arg(std::env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture"])
        .env(MARK, "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{text}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
}
