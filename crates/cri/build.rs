//! Compiles the CRI schema. No `protoc` is needed on the machine that builds.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    let schema = protox::compile(["runtime/v1/runtime.proto"], ["proto"])?;
    tonic_prost_build::configure()
        .build_server(std::env::var_os("CARGO_FEATURE_SERVER").is_some())
        .build_transport(false)
        // Maps in a stable order make requests comparable and logs readable.
        .btree_map(".")
        // They may hold secrets; `v1` implements Debug by hand.
        .skip_debug([".runtime.v1.AuthConfig", ".runtime.v1.KeyValue"])
        .compile_fds(schema)?;
    Ok(())
}
