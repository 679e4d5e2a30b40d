use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

/// A mount as `/proc/<pid>/mountinfo` shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Unique while it exists.
    pub id: u64,
    /// Id of the mount it is mounted on.
    pub parent_id: u64,
    /// `major:minor` of the file system.
    pub device: String,
    /// The part of the file system that is mounted.
    pub root: PathBuf,
    /// Where it is mounted.
    pub mount_point: PathBuf,
    /// Options of this mount (`rw`, `nosuid`, ...).
    pub options: Vec<String>,
    /// Peer group, if the mount is shared.
    pub shared_group: Option<u64>,
    /// File system type (`ext4`, `tmpfs`, `cgroup2`).
    pub file_system: String,
    /// What was mounted, in the file system's own words.
    pub source: PathBuf,
    /// Options of the file system.
    pub super_options: Vec<String>,
}

/// The mount table cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum MountTableError {
    /// The file cannot be read.
    #[error("cannot read the mount table {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A line is not of the documented form.
    #[error("the mount table has a malformed line: {line:?}")]
    Malformed {
        /// The line.
        line: String,
    },
}

/// All mounts of a mount namespace at one moment, in the kernel's order: what lies on top of a
/// path comes after what it hides.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MountTable {
    mounts: Vec<Mount>,
}

impl MountTable {
    /// Reads the table of this process. It never touches the mounted file systems, so that a dead
    /// network file system cannot hang it.
    ///
    /// # Errors
    /// When procfs cannot be read or has an unknown form.
    pub fn read() -> Result<Self, MountTableError> {
        Self::read_from(Path::new("/proc/self/mountinfo"))
    }

    /// Reads a table from a file in the format of `mountinfo`.
    ///
    /// # Errors
    /// When the file cannot be read or has an unknown form.
    pub fn read_from(path: &Path) -> Result<Self, MountTableError> {
        let content = std::fs::read(path)
            .map_err(|source| MountTableError::Read { path: path.to_owned(), source })?;
        Self::parse(&content)
    }

    /// Parses the format of `mountinfo`.
    ///
    /// # Errors
    /// When a line is malformed.
    pub fn parse(content: &[u8]) -> Result<Self, MountTableError> {
        let mounts = content
            .split(|byte| *byte == b'\n')
            .filter(|line| !line.is_empty())
            .map(|line| {
                parse_line(line).ok_or_else(|| MountTableError::Malformed {
                    line: String::from_utf8_lossy(line).into_owned(),
                })
            })
            .collect::<Result<_, _>>()?;
        Ok(Self { mounts })
    }

    /// All mounts.
    pub fn mounts(&self) -> &[Mount] {
        &self.mounts
    }

    /// The mount on top of `path`, which must be free of links; none if nothing is mounted there.
    pub fn at(&self, path: &Path) -> Option<&Mount> {
        self.mounts.iter().rev().find(|mount| mount.mount_point == path)
    }

    /// All mounts at or beneath `path`, in the order in which they can be unmounted: the innermost
    /// first, and of several at one place the topmost first.
    pub fn at_or_beneath(&self, path: &Path) -> Vec<&Mount> {
        let mut found: Vec<&Mount> =
            self.mounts.iter().rev().filter(|mount| mount.mount_point.starts_with(path)).collect();
        found.sort_by_key(|mount| std::cmp::Reverse(mount.mount_point.components().count()));
        found
    }

    /// The mount that `path`, free of links, lies on.
    pub fn containing(&self, path: &Path) -> Option<&Mount> {
        path.ancestors().find_map(|ancestor| self.at(ancestor))
    }
}

fn parse_line(line: &[u8]) -> Option<Mount> {
    // id parent major:minor root mount-point options [optional...] - type source super-options
    let mut fields = line.split(|byte| *byte == b' ');
    let id = number(fields.next()?)?;
    let parent_id = number(fields.next()?)?;
    let device = text(fields.next()?);
    let root = path(fields.next()?);
    let mount_point = path(fields.next()?);
    let options = list(fields.next()?);
    let mut shared_group = None;
    loop {
        match fields.next()? {
            b"-" => break,
            optional => {
                if let Some(group) = optional.strip_prefix(b"shared:") {
                    shared_group = Some(number(group)?);
                }
            }
        }
    }
    let file_system = text(fields.next()?);
    let source = path(fields.next()?);
    let super_options = list(fields.next().unwrap_or_default());
    Some(Mount {
        id,
        parent_id,
        device,
        root,
        mount_point,
        options,
        shared_group,
        file_system,
        source,
        super_options,
    })
}

fn number(field: &[u8]) -> Option<u64> {
    std::str::from_utf8(field).ok()?.parse().ok()
}

fn text(field: &[u8]) -> String {
    String::from_utf8_lossy(field).into_owned()
}

fn list(field: &[u8]) -> Vec<String> {
    field
        .split(|byte| *byte == b',')
        .filter(|option| !option.is_empty())
        .map(|option| String::from_utf8_lossy(&unescape(option)).into_owned())
        .collect()
}

fn path(field: &[u8]) -> PathBuf {
    PathBuf::from(OsString::from_vec(unescape(field)))
}

/// Undoes the kernel's escaping of space, tab, newline, backslash and `#` as three octal digits.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, after)) = rest.split_first() {
        if *first == b'\\'
            && let Some(byte) = after.get(..3).and_then(octal)
        {
            out.push(byte);
            rest = &after[3..];
        } else {
            out.push(*first);
            rest = after;
        }
    }
    out
}

fn octal(digits: &[u8]) -> Option<u8> {
    digits.iter().try_fold(0u8, |value, digit| {
        let digit = digit.checked_sub(b'0').filter(|digit| *digit < 8)?;
        value.checked_mul(8)?.checked_add(digit)
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TABLE: &[u8] = b"\
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,discard
31 27 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
90 27 0:50 / /var/lib/kubelet/pods/a\\040b/v rw master:4 propagate_from:2 - tmpfs tmp\\134fs rw,size=4k
91 90 254:0 /data /var/lib/kubelet/pods/a\\040b/v/inner ro,nosuid shared:7 - ext4 /dev/vda rw
92 90 0:51 / /var/lib/kubelet/pods/a\\040b/v/inner rw - tmpfs tmpfs rw
93 27 0:52 / /var/lib/kubelet/pods/a\\040bc rw - tmpfs none rw
";

    fn points(mounts: &[&Mount]) -> Vec<(u64, String)> {
        mounts.iter().map(|m| (m.id, m.mount_point.display().to_string())).collect()
    }

    #[test]
    fn lines_are_read_with_their_escapes() {
        let table = MountTable::parse(TABLE).unwrap();
        assert_eq!(table.mounts().len(), 6);
        assert_eq!(table.mounts()[0].shared_group, Some(1));
        let mount = &table.mounts()[2];
        assert_eq!(mount.mount_point, Path::new("/var/lib/kubelet/pods/a b/v"));
        assert_eq!(mount.source, Path::new("tmp\\fs"));
        assert_eq!(mount.shared_group, None);
        assert_eq!(mount.super_options, ["rw", "size=4k"]);
        assert_eq!(table.mounts()[3].options, ["ro", "nosuid"]);
        assert_eq!(table.mounts()[3].root, Path::new("/data"));
    }

    #[test]
    fn mounts_beneath_come_innermost_first() {
        let table = MountTable::parse(TABLE).unwrap();
        assert_eq!(
            points(&table.at_or_beneath(Path::new("/var/lib/kubelet/pods/a b"))),
            [
                (92, "/var/lib/kubelet/pods/a b/v/inner".to_owned()),
                (91, "/var/lib/kubelet/pods/a b/v/inner".to_owned()),
                (90, "/var/lib/kubelet/pods/a b/v".to_owned()),
            ]
        );
        assert!(table.at_or_beneath(Path::new("/var/lib/kubelet/pods/a")).is_empty());
    }

    #[test]
    fn the_topmost_mount_counts() {
        let table = MountTable::parse(TABLE).unwrap();
        assert_eq!(table.at(Path::new("/var/lib/kubelet/pods/a b/v/inner")).unwrap().id, 92);
        assert_eq!(table.containing(Path::new("/var/lib/kubelet/pods")).unwrap().id, 27);
        assert_eq!(table.containing(Path::new("/sys/fs/cgroup/x/y")).unwrap().id, 31);
        assert!(table.at(Path::new("/var")).is_none());
    }

    #[test]
    fn malformed_lines_are_named() {
        for line in ["27 1 254:0 / /", "x 1 254:0 / / rw - ext4 a rw", "1 1 0:0 / / rw shared:1"] {
            let error = MountTable::parse(line.as_bytes()).unwrap_err();
            assert!(error.to_string().contains(line), "{error}");
        }
    }

    #[test]
    fn the_real_table_has_a_root() {
        let table = MountTable::read().unwrap();
        assert!(table.at(Path::new("/")).is_some());
        assert!(table.at(Path::new("/proc")).is_some());
    }

    proptest! {
        #[test]
        fn no_content_panics(content in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = MountTable::parse(&content);
        }

        #[test]
        fn escapes_come_back(name in "[ a\\\\\t#0-7]{0,20}") {
            let mut escaped = String::new();
            for c in name.chars() {
                match c {
                    ' ' | '\t' | '\\' | '#' => escaped.push_str(&format!("\\{:03o}", u32::from(c))),
                    _ => escaped.push(c),
                }
            }
            prop_assert_eq!(unescape(escaped.as_bytes()), name.into_bytes());
        }
    }
}
