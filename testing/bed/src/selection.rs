//! What was asked for on the command line of a test that brings its own harness.

/// Which tests to run, and how.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Selection {
    filters: Vec<String>,
    exact: bool,
    /// Only say which there are.
    pub list: bool,
    /// One after the other.
    pub one_lane: bool,
}

impl Selection {
    /// Reads the arguments that `cargo test` passes on; those of its own that mean nothing here are
    /// passed over.
    pub fn from_args(args: impl Iterator<Item = String>) -> Self {
        let mut selection = Self::default();
        let mut args = args.peekable();
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--exact" => selection.exact = true,
                "--list" => selection.list = true,
                "--test-threads=1" => selection.one_lane = true,
                "--test-threads" => selection.one_lane = args.next().as_deref() == Some("1"),
                "--format" | "--color" | "--skip" | "-Z" | "--logfile" => drop(args.next()),
                flag if flag.starts_with('-') => {}
                filter => selection.filters.push(filter.to_owned()),
            }
        }
        selection
    }

    /// Whether the test of that name is among them.
    pub fn takes(&self, name: &str) -> bool {
        let matches = |filter: &String| match self.exact {
            true => name == filter,
            false => name.contains(filter.as_str()),
        };
        self.filters.is_empty() || self.filters.iter().any(matches)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selection(args: &[&str]) -> Selection {
        Selection::from_args(args.iter().map(|arg| arg.to_string()))
    }

    #[test]
    fn filters_select_by_part_or_by_whole_name() {
        let part = selection(&["--nocapture", "one_pod"]);
        assert!(part.takes("debian::one_pod_runs") && !part.takes("debian::two_pods_run"));
        let whole = selection(&["--exact", "built::one_pod_runs"]);
        assert!(whole.takes("built::one_pod_runs") && !whole.takes("built::one_pod_runs_again"));
        assert!(selection(&[]).takes("anything"));
    }

    #[test]
    fn a_flag_with_a_value_does_not_become_a_filter() {
        assert_eq!(selection(&["--format", "json"]), Selection::default());
        assert!(selection(&["--test-threads", "1"]).one_lane);
    }
}
