use std::fs;
use std::io;

/// Takes the pages of code out of the process's memory that it does not go on to use: all of them,
/// and each comes back when it is run the next time. Where the files are in the kernel's cache, as
/// they are unless memory is short, that costs some microseconds for each 64 KiB.
///
/// # Errors
///
/// The list of mappings cannot be read, or the kernel refuses.
pub fn return_unused_code() -> io::Result<()> {
    let maps = fs::read_to_string("/proc/self/maps")?;
    maps.lines().filter_map(code_mapping).try_for_each(|(start, length)| forget(start, length))
}

/// Start and length of the mapping in a line of `maps` if it is code from a file: what can be read and
/// run, and not written.
fn code_mapping(line: &str) -> Option<(usize, usize)> {
    let mut words = line.split_whitespace();
    let (range, rights) = (words.next()?, words.next()?);
    // Offset, device, inode, path; the kernel's own code has a name in brackets.
    let path = words.nth(3)?;
    if rights != "r-xp" || !path.starts_with('/') {
        return None;
    }
    let (start, end) = range.split_once('-')?;
    let start = usize::from_str_radix(start, 16).ok()?;
    let end = usize::from_str_radix(end, 16).ok()?;
    Some((start, end.checked_sub(start)?))
}

#[allow(unsafe_code)]
fn forget(start: usize, length: usize) -> io::Result<()> {
    let start = std::ptr::without_provenance_mut(start);
    // SAFETY: the range is a whole mapping of this process, private, from a file and not writable, so
    // its pages are the file's, and the kernel reads the same again wherever one is used. The file
    // cannot be written to while it is run, and nobody unmaps code in a program that loads none.
    match unsafe { libc::madvise(start, length, libc::MADV_DONTNEED) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_code_of_files_is_taken() {
        for (line, taken) in [
            (
                "7f0000001000-7f0000003000 r-xp 00001000 fe:00 42                 /usr/bin/kubelet",
                true,
            ),
            ("7f0000001000-7f0000003000 r-xp 00001000 fe:00 42   /usr/bin/kubelet (deleted)", true),
            (
                "7f0000003000-7f0000004000 r--p 00003000 fe:00 42                 /usr/bin/kubelet",
                false,
            ),
            (
                "7f0000004000-7f0000005000 rw-p 00004000 fe:00 42                 /usr/bin/kubelet",
                false,
            ),
            (
                "7f0000004000-7f0000005000 rwxp 00004000 fe:00 42                 /usr/bin/kubelet",
                false,
            ),
            ("7f0000005000-7f0000006000 r-xp 00000000 00:00 0", false),
            ("7ffc00000000-7ffc00002000 r-xp 00000000 00:00 0                  [vdso]", false),
        ] {
            let found = code_mapping(line);
            assert_eq!(found, taken.then_some((0x7f00_0000_1000, 0x2000)), "{line}");
        }
    }

    /// Code of files that is resident, in KiB.
    fn resident() -> u64 {
        let smaps = fs::read_to_string("/proc/self/smaps").expect("procfs");
        let mut is_code = false;
        let mut sum = 0;
        for line in smaps.lines() {
            if let Some(size) = line.strip_prefix("Rss:") {
                let size = size.trim().trim_end_matches(" kB").parse::<u64>().expect("a number");
                sum += if is_code { size } else { 0 };
            } else if line.split_whitespace().nth(1).is_some_and(|rights| rights.len() == 4) {
                is_code = code_mapping(line).is_some();
            }
        }
        sum
    }

    #[test]
    fn code_goes_and_comes_back_when_it_is_run() {
        // So that there is something to lose, whatever has been run until now.
        let before = resident();
        return_unused_code().expect("the kernel takes the advice");
        let after = resident();
        assert!(after < before, "{before} KiB before, {after} after");
        assert_eq!(format!("{:?}", "42".parse::<f64>()), "Ok(42.0)");
    }
}
