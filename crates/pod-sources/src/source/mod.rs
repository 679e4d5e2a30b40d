//! The sources: those that read manifests hand over full sets, the API server single changes too.

mod api;
mod file;
mod http;
mod http_client;
mod manifest_files;
mod watch;

pub use api::watch_api_pods;
pub(crate) use file::FileSource;
pub(crate) use http::HttpSource;
pub use http::InvalidManifestUrl;
