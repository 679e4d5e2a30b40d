//! Paths beneath a directory handle, which nobody can lead elsewhere by exchanging links.

mod directory;
mod entries;
mod remove_tree;
mod sub_path;
mod walk;

pub use directory::{Directory, PathError};
pub use remove_tree::{RemoveTreeError, remove_empty_tree, remove_tree_one_filesystem};
pub use sub_path::{SubPathError, prepare_sub_path};
