//! The program as the loader of glibc sees it.

#![cfg(target_env = "gnu")]

use std::process::Command;

/// Half a MiB of the C library's mathematics would stay resident for one call of `pow`.
#[test]
fn the_program_loads_no_library_that_it_hardly_needs() {
    let listed = Command::new(env!("CARGO_BIN_EXE_kubelet"))
        .env("LD_TRACE_LOADED_OBJECTS", "1")
        .output()
        .expect("the loader lists what it would load");
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    let names: Vec<&str> =
        listed.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert!(names.iter().any(|name| name.starts_with("libc.so")), "{listed}");
    let expected = ["linux-vdso", "libc.so", "libgcc_s.so", "ld-linux", "/lib"];
    for name in names {
        assert!(expected.iter().any(|known| name.starts_with(known)), "{name} in\n{listed}");
    }
}
