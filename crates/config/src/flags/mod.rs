//! The command line: a table of flags and a reader with the rules of Go's `pflag`.
//!
//! Those rules are contract (unit files and kubeadm's environment files rely on them) and no
//! general argument parser has them: `_` and `-` are the same in names, a switch never takes the
//! next word, lists and maps replace what the file says at their first use only, and the whole
//! command line is applied a second time over the configuration file.

mod config_flags;
mod help;
mod node_flags;
mod values;

use std::ffi::OsString;

pub use help::help_text;

use crate::{KubeletConfiguration, KubeletOptions};

/// What the value of a flag looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueKind {
    /// A switch: the value may be left out, which means `true`.
    Bool,
    /// `--version`: like a switch, and `raw` or a version too.
    Version,
    /// Any text.
    Text,
    /// A 32 or 64 bit number.
    Int,
    /// A Go duration.
    Duration,
    /// A quantity.
    Quantity,
    /// Texts with commas between.
    List,
    /// `key=value` pairs with commas between.
    Map,
    /// `key<value` pairs with commas between.
    Thresholds,
}

impl ValueKind {
    /// The value if the flag stands alone.
    fn implied(self) -> Option<&'static str> {
        matches!(self, Self::Bool | Self::Version).then_some("true")
    }

    fn placeholder(self) -> &'static str {
        match self {
            Self::Bool => "",
            Self::Version => "version[=true]",
            Self::Text => "string",
            Self::Int => "int",
            Self::Duration => "duration",
            Self::Quantity => "quantity",
            Self::List => "strings",
            Self::Map => "<comma-separated 'key=value' pairs>",
            Self::Thresholds => "<comma-separated 'key<value' pairs>",
        }
    }
}

/// Whether a flag should still be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deprecation {
    /// It is fine.
    None,
    /// The field of the configuration file replaces it.
    UseConfigFile,
    /// It works and will go away; what to do instead.
    Replaced(&'static str),
    /// It has no effect any more and is accepted so that old files still work; why.
    Ignored(&'static str),
}

/// One flag.
#[derive(Clone, Copy, Debug)]
pub struct FlagSpec {
    /// The name without dashes.
    pub name: &'static str,
    /// The one-letter name.
    pub shorthand: Option<char>,
    /// What its value looks like.
    pub kind: ValueKind,
    /// Path of the `KubeletConfiguration` field that it sets, if it sets one.
    pub field: Option<&'static str>,
    /// Whether it should still be used.
    pub deprecation: Deprecation,
    /// One or two sentences.
    pub help: &'static str,
    set: fn(&mut Assignment<'_>, &str) -> Result<(), String>,
}

/// What a flag writes to.
struct Assignment<'a> {
    config: &'a mut KubeletConfiguration,
    options: &'a mut KubeletOptions,
    /// This is the first use of the flag on this command line.
    first: bool,
}

type Setter = fn(&mut Assignment<'_>, &str) -> Result<(), String>;

impl FlagSpec {
    const fn of_config(
        name: &'static str,
        kind: ValueKind,
        field: &'static str,
        help: &'static str,
        set: Setter,
    ) -> Self {
        let deprecation = Deprecation::UseConfigFile;
        Self { name, shorthand: None, kind, field: Some(field), deprecation, help, set }
    }

    const fn of_node(
        name: &'static str,
        kind: ValueKind,
        deprecation: Deprecation,
        help: &'static str,
        set: Setter,
    ) -> Self {
        Self { name, shorthand: None, kind, field: None, deprecation, help, set }
    }

    /// All flags, sorted by name within their table.
    pub fn all() -> impl Iterator<Item = &'static Self> {
        node_flags::FLAGS.iter().chain(config_flags::FLAGS)
    }

    /// The flag of that name; `_` is the same as `-`.
    pub fn by_name(name: &str) -> Option<&'static Self> {
        let name = name.replace('_', "-");
        Self::all().find(|flag| flag.name == name)
    }

    fn by_shorthand(letter: char) -> Option<&'static Self> {
        Self::all().find(|flag| flag.shorthand == Some(letter))
    }

    /// As error texts name it.
    fn display_name(&self) -> String {
        match self.shorthand {
            Some(letter) => format!("-{letter}, --{}", self.name),
            None => format!("--{}", self.name),
        }
    }
}

/// Why a command line cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FlagError {
    /// No flag of that name.
    #[error("unknown flag: --{0}")]
    Unknown(String),
    /// No flag of that letter.
    #[error("unknown shorthand flag: {letter:?} in -{word}")]
    UnknownShorthand {
        /// The letter.
        letter: char,
        /// The word in which it stands.
        word: String,
    },
    /// `--=x` and the like.
    #[error("bad flag syntax: {0}")]
    Syntax(String),
    /// The flag needs a value and stands last.
    #[error("flag needs an argument: {0}")]
    MissingValue(String),
    /// The value cannot be used.
    #[error("invalid argument {value:?} for {flag:?} flag: {reason}")]
    Value {
        /// The flag.
        flag: String,
        /// The value.
        value: String,
        /// What is wrong.
        reason: String,
    },
    /// A word that belongs to no flag.
    #[error("unknown command {0}")]
    Command(String),
    /// A word that is no UTF-8.
    #[error("argument {0:?} is not valid UTF-8")]
    Encoding(OsString),
}

/// What the command line asks for before anything else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    Run,
    Help,
    Version { raw: bool },
}

/// A flag with the value it was given.
#[derive(Clone, Debug)]
pub(crate) struct FlagUse {
    pub(crate) flag: &'static FlagSpec,
    pub(crate) value: String,
}

/// A read command line.
#[derive(Clone, Debug)]
pub(crate) struct CommandLine {
    pub(crate) uses: Vec<FlagUse>,
    pub(crate) request: Request,
}

const VERSION: &str = "version";
const HELP: &str = "help";

impl CommandLine {
    /// Reads the words after the program's name.
    pub(crate) fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Self, FlagError> {
        let mut words = args
            .into_iter()
            .map(|word| word.into_string().map_err(FlagError::Encoding))
            .collect::<Result<Vec<_>, _>>()?
            .into_iter();
        let mut uses = Vec::new();
        let mut positional = None;
        while let Some(word) = words.next() {
            if word == "--" {
                positional = positional.or(words.next());
                break;
            }
            if let Some(long) = word.strip_prefix("--") {
                uses.push(Self::long(&word, long, &mut words)?);
            } else if let Some(letters) = word.strip_prefix('-').filter(|rest| !rest.is_empty()) {
                Self::short(letters, &mut words, &mut uses)?;
            } else {
                positional.get_or_insert(word);
            }
        }
        let request = Self::request(&uses)?;
        match positional {
            Some(word) => Err(FlagError::Command(word)),
            None => Ok(Self { uses, request }),
        }
    }

    fn long(
        word: &str,
        long: &str,
        words: &mut impl Iterator<Item = String>,
    ) -> Result<FlagUse, FlagError> {
        let (name, value) = match long.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (long, None),
        };
        if name.is_empty() || name.starts_with('-') {
            return Err(FlagError::Syntax(word.to_owned()));
        }
        let flag = FlagSpec::by_name(name).ok_or_else(|| FlagError::Unknown(name.to_owned()))?;
        let value = value
            .or_else(|| flag.kind.implied().map(str::to_owned))
            .or_else(|| words.next())
            .ok_or_else(|| FlagError::MissingValue(word.to_owned()))?;
        Ok(FlagUse { flag, value })
    }

    /// `-v4`, `-v=4`, `-v 4`, `-hv4`.
    fn short(
        word: &str,
        words: &mut impl Iterator<Item = String>,
        uses: &mut Vec<FlagUse>,
    ) -> Result<(), FlagError> {
        let mut letters = word.chars();
        while let Some(letter) = letters.next() {
            let flag = FlagSpec::by_shorthand(letter)
                .ok_or_else(|| FlagError::UnknownShorthand { letter, word: word.to_owned() })?;
            let rest = letters.as_str();
            if let Some(value) = rest.strip_prefix('=') {
                uses.push(FlagUse { flag, value: value.to_owned() });
                return Ok(());
            }
            if let Some(value) = flag.kind.implied() {
                uses.push(FlagUse { flag, value: value.to_owned() });
                continue;
            }
            let value = if rest.is_empty() { words.next() } else { Some(rest.to_owned()) };
            let value =
                value.ok_or_else(|| FlagError::MissingValue(format!("{letter:?} in -{word}")))?;
            uses.push(FlagUse { flag, value });
            return Ok(());
        }
        Ok(())
    }

    /// Help before version, as upstream looks for them.
    fn request(uses: &[FlagUse]) -> Result<Request, FlagError> {
        let last = |name: &str| uses.iter().rev().find(|used| used.flag.name == name);
        if let Some(used) = last(HELP)
            && used.parse::<bool>()?
        {
            return Ok(Request::Help);
        }
        match last(VERSION) {
            Some(used) if used.value == "raw" => Ok(Request::Version { raw: true }),
            Some(used) if !used.value.starts_with('v') && used.parse::<bool>()? => {
                Ok(Request::Version { raw: false })
            }
            _ => Ok(Request::Run),
        }
    }

    /// Applies all flags in their order.
    pub(crate) fn apply(
        &self,
        config: &mut KubeletConfiguration,
        options: &mut KubeletOptions,
    ) -> Result<(), FlagError> {
        let mut seen = Vec::new();
        for used in &self.uses {
            let first = !seen.contains(&used.flag.name);
            if first {
                seen.push(used.flag.name);
            }
            let mut target = Assignment { config, options, first };
            (used.flag.set)(&mut target, &used.value).map_err(|reason| used.error(reason))?;
        }
        Ok(())
    }

    /// One sentence for each flag that should no longer be used.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        for FlagUse { flag, .. } in &self.uses {
            let advice = match flag.deprecation {
                Deprecation::None => continue,
                Deprecation::UseConfigFile => format!(
                    "set {} in the file that --config names instead",
                    flag.field.unwrap_or(flag.name)
                ),
                Deprecation::Replaced(advice) => advice.to_owned(),
                Deprecation::Ignored(why) => format!("it has no effect: {why}"),
            };
            let warning = format!("Flag --{} has been deprecated, {advice}", flag.name);
            if !warnings.contains(&warning) {
                warnings.push(warning);
            }
        }
        warnings
    }
}

impl FlagUse {
    fn parse<T: values::FlagValue>(&self) -> Result<T, FlagError> {
        T::parse_flag(&self.value).map_err(|reason| self.error(reason))
    }

    fn error(&self, reason: String) -> FlagError {
        FlagError::Value { flag: self.flag.display_name(), value: self.value.clone(), reason }
    }
}

#[cfg(test)]
mod tests;
