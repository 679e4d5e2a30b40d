//! What an interrupted update or a damaged file leaves behind, made whole again.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use rubelet_checkpoint::set_aside;

use super::{CertificateStore, StoreError, UPDATED, changing, read, warn_about};
use crate::certificate::{CertificatePair, PairError};

impl CertificateStore {
    /// The update had made its new link, and the one before is gone (a Go kubelet removes it first):
    /// the new one takes its place.
    pub(super) fn finish_update(&self) -> Result<(), StoreError> {
        let (current, updated) = (self.current_path(), self.named(UPDATED));
        match fs::metadata(&current) {
            Ok(_) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(source) => return Err(StoreError::Read { path: current, source }),
        }
        match super::is_link(&updated)? {
            None => Ok(()),
            Some(false) => Err(StoreError::NotALink { path: updated }),
            Some(true) => fs::rename(&updated, &current)
                .map_err(|source| changing("rename", &updated, source)),
        }
    }

    /// The pair in use is damaged: the newest good one of those before takes its place, and the
    /// damaged file is set aside.
    pub(super) fn replace_damaged(
        &self,
        damage: &PairError,
        now: Timestamp,
    ) -> Result<Option<CertificatePair>, StoreError> {
        let current = self.current_path();
        let damaged = fs::canonicalize(&current)
            .map_err(|source| StoreError::Read { path: current.clone(), source })?;
        let replacement = self.newest_good(&damaged, now);
        if let Some((path, _)) = &replacement {
            // The link first: whatever happens from here on, there is a pair in use.
            self.point_at(path, |_| Ok(()))?;
        }
        let aside = self.set_aside_if_ours(&damaged);
        tracing::error!(
            path = %damaged.display(),
            aside = aside.map(|path| path.display().to_string()),
            replacement = replacement.as_ref().map(|(path, _)| path.display().to_string()),
            error = %damage,
            "The current certificate/key pair is damaged"
        );
        Ok(replacement.map(|(_, pair)| pair))
    }

    /// Our own files get out of the way; what an administrator linked to stays untouched.
    fn set_aside_if_ours(&self, damaged: &Path) -> Option<PathBuf> {
        let directory = fs::canonicalize(&self.directory).ok()?;
        if damaged.parent() != Some(&directory) {
            return None;
        }
        match set_aside(damaged) {
            Ok(aside) => Some(aside),
            Err(source) => {
                warn_about(&changing("rename", damaged, source));
                None
            }
        }
    }

    /// The newest pair with a time in its name that can be used and has not expired.
    fn newest_good(&self, damaged: &Path, now: Timestamp) -> Option<(PathBuf, CertificatePair)> {
        let mut names: Vec<String> = fs::read_dir(&self.directory)
            .ok()?
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .filter(|name| self.has_time_in_name(name))
            .collect();
        names.sort_unstable();
        names.into_iter().rev().map(|name| self.directory.join(name)).find_map(|path| {
            if fs::canonicalize(&path).ok()? == damaged {
                return None;
            }
            let pem = read(&path).ok()??;
            let pair = CertificatePair::from_pem(&pem, &pem).ok()?;
            pair.leaf().is_valid(now).then_some((path, pair))
        })
    }

    /// `kubelet-client-2026-01-31-23-59-59.pem`: digits where the time has digits.
    fn has_time_in_name(&self, name: &str) -> bool {
        let time = name
            .strip_prefix(self.prefix())
            .and_then(|rest| rest.strip_prefix('-'))
            .and_then(|rest| rest.strip_suffix(".pem"));
        time.is_some_and(|time| {
            time.len() == 19 && time.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-')
        })
    }
}
