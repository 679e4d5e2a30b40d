//! The sources that read manifests. Each hands over full sets.

mod file;
mod http;
mod http_client;
mod manifest_files;
mod watch;

pub(crate) use file::FileSource;
pub(crate) use http::HttpSource;
pub use http::InvalidManifestUrl;
