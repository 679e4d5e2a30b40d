//! The steps by which a log is rotated. Each leaves the directory so that whoever comes next, knowing
//! nothing, can go on. Everything here blocks.

use std::ffi::{OsStr, OsString};
use std::fs::FileTimes;
use std::io;
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;
use jiff::ToSpan as _;
use jiff::civil::DateTime;
use rubelet_linux::path::PathError;

use crate::directory::LogDirectory;
use crate::error::RotateError;
use crate::generation::{Form, Rotated, Stamp};

/// Something that is due before a log can be rotated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PrepareStep {
    /// Removes a file: left behind by an interruption, superseded, or one too many.
    Remove(Rotated),
    /// Writes what a rotated file holds, compressed, into a temporary file.
    Compress(Stamp),
    /// Gives the temporary file its name. From now on the original is superseded.
    Publish(Stamp),
}

/// What is due so that, after the log has been rotated, there are at most `max_files` files with it.
/// The file that was rotated last stays as it is until the next time: readers and collectors of logs
/// may be at it, and the runtime may have had something left to write.
pub(crate) fn plan_preparation(
    log: &OsStr,
    entries: &[OsString],
    max_files: usize,
) -> Vec<PrepareStep> {
    let mut files: Vec<Rotated> =
        entries.iter().filter_map(|entry| Rotated::parse(log, entry)).collect();
    files.sort();
    let has_compressed = |stamp| files.contains(&Rotated { stamp, form: Form::Compressed });
    let (kept, unused): (Vec<Rotated>, Vec<Rotated>) =
        files.iter().partition(|file| match file.form {
            Form::Temporary => false,
            Form::Compressed => true,
            Form::Plain => !has_compressed(file.stamp),
        });
    // The log itself, and the file that it will be renamed to, are two.
    let excess = kept.len().saturating_sub(max_files.saturating_sub(2));
    let (excess, kept) = kept.split_at(excess);
    let remove = unused.iter().chain(excess).copied().map(PrepareStep::Remove);
    let compress = kept.iter().filter(|file| file.form == Form::Plain).flat_map(|file| {
        [
            PrepareStep::Compress(file.stamp),
            PrepareStep::Publish(file.stamp),
            PrepareStep::Remove(*file),
        ]
    });
    remove.chain(compress).collect()
}

/// Does what is due before a rotation. A file that cannot be compressed, for want of space perhaps,
/// stays as it is: the log must not grow for it. Such failures are returned.
pub(crate) fn prepare(
    directory: &LogDirectory,
    max_files: usize,
) -> Result<Vec<RotateError>, RotateError> {
    let failed = |source| directory_error(directory, source);
    let entries = directory.handle().names().map_err(failed)?;
    let mut failures: Vec<(Stamp, RotateError)> = Vec::new();
    for step in plan_preparation(directory.log(), &entries, max_files) {
        let stamp = match step {
            PrepareStep::Remove(file) => file.stamp,
            PrepareStep::Compress(stamp) | PrepareStep::Publish(stamp) => stamp,
        };
        if failures.iter().any(|(failed, _)| *failed == stamp) {
            continue;
        }
        match apply(directory, step) {
            Ok(()) => {}
            Err(error) if matches!(step, PrepareStep::Remove(_)) => return Err(error),
            Err(error) => {
                let temporary = Rotated { stamp, form: Form::Temporary };
                // Left behind it is removed the next time.
                let _ = directory.handle().remove_file(&temporary.name(directory.log()));
                failures.push((stamp, error));
            }
        }
    }
    Ok(failures.into_iter().map(|(_, error)| error).collect())
}

/// Does one step.
pub(crate) fn apply(directory: &LogDirectory, step: PrepareStep) -> Result<(), RotateError> {
    let failed = |source| directory_error(directory, source);
    let log = directory.log();
    match step {
        PrepareStep::Remove(file) => {
            directory.handle().remove_file(&file.name(log)).map_err(failed)
        }
        PrepareStep::Compress(stamp) => {
            let name = Rotated { stamp, form: Form::Plain }.name(log);
            let temporary = Rotated { stamp, form: Form::Temporary }.name(log);
            compress(directory, &name, &temporary)
                .map_err(|source| RotateError::Compress { path: directory.path_of(&name), source })
        }
        PrepareStep::Publish(stamp) => {
            let name = |form| Rotated { stamp, form }.name(log);
            directory
                .handle()
                .rename_to_new(&name(Form::Temporary), &name(Form::Compressed))
                .and_then(|()| directory.handle().sync())
                .map_err(failed)
        }
    }
}

fn compress(directory: &LogDirectory, from: &OsStr, to: &OsStr) -> io::Result<()> {
    let mut original = directory.open_file(from).map_err(io::Error::other)?;
    let before = original.metadata()?;
    let mode = std::os::unix::fs::MetadataExt::mode(&before) & 0o777;
    let target = directory.handle().create_file(Path::new(to), mode).map_err(io::Error::other)?;
    let mut encoder = GzEncoder::new(target, Compression::default());
    let copied = io::copy(&mut original, &mut encoder)?;
    let target = encoder.finish()?;
    let after = original.metadata()?;
    if copied != after.len() || before.modified()? != after.modified()? {
        return Err(io::Error::other("somebody still writes to it"));
    }
    // By this time a follower knows the file again.
    target.set_times(FileTimes::new().set_modified(before.modified()?))?;
    // The original goes next.
    target.sync_all()
}

/// Gives the log the name of a rotated file, at `now` in the node's time. Until the runtime opens the
/// log anew it writes to the renamed file.
pub(crate) fn set_aside(directory: &LogDirectory, now: DateTime) -> Result<Rotated, RotateError> {
    let log = directory.log();
    let generations =
        directory.generations().map_err(|source| directory_error(directory, source))?;
    // Names tell the order, also after the clock was set back.
    let newest = generations.last().and_then(|rotated| rotated.stamp.time());
    let after = newest.and_then(|newest| newest.checked_add(1.second()).ok());
    let time = after.map_or(now, |after| after.max(now));
    let stamp = Stamp::of(time)
        .ok_or_else(|| RotateError::NoName { path: directory.path_of(log), time })?;
    let rotated = Rotated { stamp, form: Form::Plain };
    let renamed = directory.handle().rename_to_new(log, &rotated.name(log));
    renamed.map_err(|source| directory_error(directory, source))?;
    Ok(rotated)
}

/// Undoes [`set_aside`], since the runtime did not open the log anew. If it has done so after all, the
/// renamed file stays what it is.
pub(crate) fn put_back(directory: &LogDirectory, rotated: Rotated) -> Result<(), RotateError> {
    let log = directory.log();
    match directory.handle().rename_to_new(&rotated.name(log), log) {
        Err(PathError::Os { source, .. }) if source.kind() == io::ErrorKind::AlreadyExists => {
            Ok(())
        }
        result => result.map_err(|source| directory_error(directory, source)),
    }
}

pub(crate) fn directory_error(directory: &LogDirectory, source: PathError) -> RotateError {
    RotateError::Directory { path: directory.path_of(directory.log()), source }
}

#[cfg(test)]
mod tests;
