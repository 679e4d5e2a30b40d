//! Where the last lines of a file begin.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;

use memchr::memrchr_iter;

/// How much is read at once, from the end backwards.
const BLOCK: u64 = 64 * 1024;

/// The bytes of the last `lines` lines among the first `length` bytes of `file`. What has no end of
/// line yet counts only if there are fewer lines than wanted.
pub(crate) fn last_lines(file: &File, length: u64, lines: u64) -> io::Result<Range<u64>> {
    let mut block = vec![0; usize::try_from(BLOCK.min(length)).unwrap_or_default()];
    let mut position = length;
    // The newline that ends the last line, and how many lines begin behind `position`.
    let mut end = None;
    let mut found = 0;
    while position > 0 {
        let begin = position.saturating_sub(BLOCK);
        let bytes = &mut block[..usize::try_from(position - begin).unwrap_or_default()];
        file.read_exact_at(bytes, begin)?;
        for newline in memrchr_iter(b'\n', bytes) {
            let behind = begin + newline as u64 + 1;
            let end = *end.get_or_insert(behind);
            if found == lines {
                return Ok(behind..end);
            }
            found += 1;
        }
        position = begin;
    }
    Ok(0..if found == lines { end.unwrap_or(0) } else { length })
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use proptest::prelude::*;

    use super::*;

    fn file(content: &[u8]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(content).unwrap();
        file
    }

    #[test]
    fn lines_are_counted_from_the_end() {
        let content = "one\ntwo\n\nfour\nunfinished";
        let file = file(content.as_bytes());
        for (lines, expected) in [
            (0, ""),
            (1, "four\n"),
            (2, "\nfour\n"),
            (3, "two\n\nfour\n"),
            (4, "one\ntwo\n\nfour\n"),
            (5, content),
            (u64::MAX, content),
        ] {
            let range = last_lines(&file, content.len() as u64, lines).unwrap();
            let at = |offset| usize::try_from(offset).unwrap();
            assert_eq!(&content[at(range.start)..at(range.end)], expected, "{lines}");
        }
    }

    #[test]
    fn files_without_lines_have_none() {
        assert_eq!(last_lines(&file(b""), 0, 3).unwrap(), 0..0);
        assert_eq!(last_lines(&file(b"x"), 1, 3).unwrap(), 0..1);
        assert_eq!(last_lines(&file(b"x"), 1, 0).unwrap(), 0..0);
        assert_eq!(last_lines(&file(b"x\n"), 2, 0).unwrap(), 2..2);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn blocks_make_no_difference(
            lengths in proptest::collection::vec(prop_oneof![0_usize..200, 60_000_usize..70_000], 1..12),
            lines in 0_usize..14,
        ) {
            let content: Vec<u8> = lengths
                .iter()
                .flat_map(|length| std::iter::repeat_n(b'x', *length).chain([b'\n']))
                .collect();
            let range = last_lines(&file(&content), content.len() as u64, lines as u64).unwrap();
            let wanted = lengths.len().saturating_sub(lines);
            let start: usize = lengths[..wanted].iter().map(|length| length + 1).sum();
            prop_assert_eq!(range, start as u64..content.len() as u64);
        }
    }
}
