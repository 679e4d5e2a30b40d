//! Volumes whose files the kubelet writes itself: configMap, secret, downwardAPI, projected.
//!
//! A volume's directory holds the files in a directory of their own, `..<time>.<number>`, that the
//! link `..data` names. An update writes a new such directory and swaps the link by a rename, so
//! whoever reads sees the old set of files or the new one and never parts of both. What users see
//! at the top are links through `..data`. Another kubelet finds its way in this layout, and so do
//! programs that wait for `..data` to change.

mod set_up;
mod tree;
mod writer;
#[cfg(test)]
mod writer_tests;

pub(crate) use self::set_up::{ContentToSetUp, WRAPPED_PREFIX, set_up_content};
