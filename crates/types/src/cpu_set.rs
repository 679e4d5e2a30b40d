use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

/// Kernels are built for fewer CPUs than this: a list that names others is a mistake.
const MOST_CPUS: u32 = 1 << 16;

/// A set of CPUs, written as the kernel does: `0-3,8`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuSet(BTreeSet<u32>);

impl CpuSet {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// There is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// A text is no list of CPUs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no list of CPUs such as \"0-3,8\"")]
pub struct ParseCpuSetError(String);

impl FromStr for CpuSet {
    type Err = ParseCpuSetError;

    /// An empty text is no set: whoever allows one has to say so.
    fn from_str(text: &str) -> Result<Self, ParseCpuSetError> {
        let wrong = || ParseCpuSetError(text.to_owned());
        let number = |text: &str| {
            text.trim().parse::<u32>().ok().filter(|cpu| *cpu < MOST_CPUS).ok_or_else(wrong)
        };
        let mut cpus = BTreeSet::new();
        for part in text.trim().split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (number(first)?, number(last)?);
            if first > last {
                return Err(wrong());
            }
            cpus.extend(first..=last);
        }
        Ok(Self(cpus))
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        let mut cpus = self.0.iter().copied().peekable();
        while let Some(first) = cpus.next() {
            let mut last = first;
            while let Some(next) = cpus.next_if_eq(&(last + 1)) {
                last = next;
            }
            write!(f, "{separator}{first}")?;
            if last > first {
                write!(f, "-{last}")?;
            }
            separator = ",";
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_and_written_as_the_kernel_does() {
        for (text, written, count) in [
            ("0", "0", 1),
            ("0-3,8", "0-3,8", 5),
            ("8,3,1-2,0\n", "0-3,8", 5),
            (" 1 - 2 , 4", "1-2,4", 3),
            ("5,5-6", "5-6", 2),
        ] {
            let cpus: CpuSet = text.parse().unwrap();
            assert_eq!((cpus.to_string().as_str(), cpus.len()), (written, count), "{text:?}");
        }
    }

    #[test]
    fn what_is_no_list_is_refused() {
        for text in ["", ",", "1,", "2-0", "a", "-1", "1-", "0-4294967295", "65536"] {
            assert!(text.parse::<CpuSet>().is_err(), "{text:?}");
        }
    }
}
