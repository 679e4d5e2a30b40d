//! From the command line to the configuration in force. The only module that reads files.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::decode::{self, DecodeError, Document};
use crate::flags::{CommandLine, FlagError, FlagUse, Request};
use crate::validate::{FieldError, ValidationErrors, validate, warnings_of_effective};
use crate::{FeatureGates, KubeletConfiguration, KubeletOptions};

/// Larger configuration files are refused, so that a wrong path costs neither time nor memory.
pub const MAX_FILE_BYTES: u64 = 4 << 20;

/// What the command line asks for.
#[derive(Debug, Clone)]
pub enum Invocation {
    /// Be a kubelet.
    Run(Box<Effective>),
    /// Print the version: in short, or everything there is to say about it.
    Version {
        /// `--version=raw`.
        raw: bool,
    },
    /// Print this text.
    Help(String),
}

/// Everything that was configured, with defaults in place, and valid.
#[derive(Debug, Clone)]
pub struct Effective {
    /// The configuration, flags included.
    pub config: KubeletConfiguration,
    /// What only flags say.
    pub options: KubeletOptions,
    /// The state of every feature gate.
    pub gates: FeatureGates,
    /// What people should know: deprecated flags, unknown fields, superfluous gates, ignored values.
    pub warnings: Vec<String>,
    /// The flags as given, in their order, to be echoed in the log.
    pub given_flags: Vec<GivenFlag>,
    /// The files that were read, in the order in which they count.
    pub sources: Vec<PathBuf>,
    /// Files of `--config-dir` that are no drop-ins.
    pub skipped_files: Vec<PathBuf>,
}

/// One use of a flag, fit for the log: header values are masked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GivenFlag {
    /// The name without dashes.
    pub name: &'static str,
    /// The value.
    pub value: String,
}

/// Why there is no usable configuration.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The command line cannot be understood.
    #[error("failed to parse kubelet flag")]
    Flags(#[source] FlagError),
    /// A file or directory cannot be read.
    #[error("failed to read kubelet configuration {path:?}")]
    Read {
        /// The file or directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file is no configuration, only large.
    #[error("kubelet configuration {path:?} is larger than {MAX_FILE_BYTES} bytes")]
    TooLarge {
        /// The file.
        path: PathBuf,
    },
    /// A file's content cannot be understood.
    #[error("failed to load kubelet configuration {path:?}")]
    Decode {
        /// The file.
        path: PathBuf,
        /// Why.
        source: DecodeError,
    },
    /// The drop-ins together make no configuration.
    #[error("failed to merge the drop-ins of {path:?}")]
    Merge {
        /// The directory.
        path: PathBuf,
        /// Why.
        source: DecodeError,
    },
    /// It can be understood and must not be so.
    #[error(transparent)]
    Invalid(ValidationErrors),
}

/// Turns the words after the program's name into what they ask for: reads the flags, the file of
/// `--config` and the drop-ins of `--config-dir`, and checks the result as a whole.
pub fn load(args: impl IntoIterator<Item = OsString>) -> Result<Invocation, LoadError> {
    let command_line = CommandLine::parse(args).map_err(LoadError::Flags)?;
    match command_line.request {
        Request::Help => return Ok(Invocation::Help(crate::help_text())),
        Request::Version { raw } => return Ok(Invocation::Version { raw }),
        Request::Run => {}
    }
    let mut options = KubeletOptions::default();
    let mut config = KubeletConfiguration::legacy_default();
    command_line.apply(&mut config, &mut options).map_err(LoadError::Flags)?;
    let mut files = Files::default();
    if let Some(from_files) = files.configuration(&options)? {
        config = from_files;
        // Flags beat files, so they are applied once more, over what the files say.
        options = KubeletOptions::default();
        command_line.apply(&mut config, &mut options).map_err(LoadError::Flags)?;
    }
    config.seccomp_default |= options.seccomp_default;
    options.external_cloud_provider = options.cloud_provider == "external";

    let mut errors = Vec::new();
    let (gates, gate_warnings) =
        FeatureGates::resolve(&config.feature_gates).unwrap_or_else(|gate_errors| {
            errors.extend(
                gate_errors.iter().map(|error| FieldError::new("featureGates", error.to_string())),
            );
            (FeatureGates::default(), Vec::new())
        });
    config.clear_defaults_of_disabled_gates(&gates);
    errors.extend(validate(&config, &options, &gates));
    if !errors.is_empty() {
        return Err(LoadError::Invalid(ValidationErrors(errors)));
    }
    options.root_dir = absolute(&options.root_dir)?;
    let mut warnings = command_line.warnings();
    warnings.append(&mut files.warnings);
    warnings.extend(gate_warnings);
    warnings.extend(warnings_of_effective(&config, &options, &gates));
    Ok(Invocation::Run(Box::new(Effective {
        config,
        options,
        gates,
        warnings,
        given_flags: command_line.uses.iter().map(GivenFlag::from).collect(),
        sources: files.sources,
        skipped_files: files.skipped,
    })))
}

impl From<&FlagUse> for GivenFlag {
    fn from(used: &FlagUse) -> Self {
        let value = if used.flag.field == Some("staticPodURLHeader") {
            "<masked>".to_owned()
        } else {
            used.value.clone()
        };
        Self { name: used.flag.name, value }
    }
}

/// Fields that hold a file name, which may be relative to the file in which it stands.
const FILE_NAME_FIELDS: [&[&str]; 5] = [
    &["staticPodPath"],
    &["tlsCertFile"],
    &["tlsPrivateKeyFile"],
    &["authentication", "x509", "clientCAFile"],
    &["resolvConf"],
];

#[derive(Default)]
struct Files {
    sources: Vec<PathBuf>,
    skipped: Vec<PathBuf>,
    warnings: Vec<String>,
}

impl Files {
    /// What `--config` and `--config-dir` say together; none if neither is given.
    fn configuration(
        &mut self,
        options: &KubeletOptions,
    ) -> Result<Option<KubeletConfiguration>, LoadError> {
        let base = match &options.config_file {
            Some(path) => {
                let path = absolute(path)?;
                let object = self.read(&path)?;
                let config = decode::into_configuration(object)
                    .map_err(|source| LoadError::Decode { path, source })?;
                Some(config)
            }
            None => None,
        };
        let Some(directory) = &options.config_dir else { return Ok(base) };
        let directory = absolute(directory)?;
        let base = base.unwrap_or_else(KubeletConfiguration::legacy_default);
        let mut object = decode::into_object(&base);
        for path in self.drop_ins(&directory)? {
            let patch = self.read(&path)?;
            decode::merge_patch(&mut object, patch);
        }
        decode::into_configuration(object)
            .map(Some)
            .map_err(|source| LoadError::Merge { path: directory, source })
    }

    /// Reads one file; its file names become absolute.
    fn read(&mut self, path: &Path) -> Result<Map<String, Value>, LoadError> {
        let text = read_text(path)?;
        let Document { mut object, warnings } = decode::decode_document(&text)
            .map_err(|source| LoadError::Decode { path: path.to_owned(), source })?;
        self.warnings
            .extend(warnings.into_iter().map(|warning| format!("{}: {warning}", path.display())));
        if let Some(directory) = path.parent() {
            for field in FILE_NAME_FIELDS {
                resolve_file_name(&mut object, field, directory);
            }
        }
        self.sources.push(path.to_owned());
        Ok(object)
    }

    /// The drop-ins below `directory` in lexical order. A link counts if it leads to a regular file
    /// (mounted config maps are made of links); linked directories are not entered.
    fn drop_ins(&mut self, directory: &Path) -> Result<Vec<PathBuf>, LoadError> {
        let mut found = Vec::new();
        // Last in, first out, filled in reverse, gives the order of a recursive walk.
        let mut waiting = sorted_entries(directory)?;
        waiting.reverse();
        while let Some(path) = waiting.pop() {
            let failed = |source| LoadError::Read { path: path.clone(), source };
            let kind = fs::symlink_metadata(&path).map_err(failed)?.file_type();
            if kind.is_dir() {
                let mut entries = sorted_entries(&path)?;
                entries.reverse();
                waiting.append(&mut entries);
                continue;
            }
            let is_file = kind.is_file()
                || kind.is_symlink() && fs::metadata(&path).map_err(failed)?.is_file();
            if is_file && path.extension().is_some_and(|extension| extension == "conf") {
                found.push(path);
            } else {
                self.skipped.push(path);
            }
        }
        Ok(found)
    }
}

fn sorted_entries(directory: &Path) -> Result<Vec<PathBuf>, LoadError> {
    let failed = |source| LoadError::Read { path: directory.to_owned(), source };
    let mut entries = fs::read_dir(directory)
        .map_err(failed)?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<Vec<_>, _>>()
        .map_err(failed)?;
    entries.sort_by(|a, b| a.file_name().cmp(&b.file_name()));
    Ok(entries)
}

fn absolute(path: &Path) -> Result<PathBuf, LoadError> {
    std::path::absolute(path).map_err(|source| LoadError::Read { path: path.to_owned(), source })
}

fn read_text(path: &Path) -> Result<String, LoadError> {
    let failed = |source| LoadError::Read { path: path.to_owned(), source };
    let mut text = String::new();
    File::open(path)
        .and_then(|file| file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text))
        .map_err(failed)?;
    if text.len() as u64 > MAX_FILE_BYTES {
        return Err(LoadError::TooLarge { path: path.to_owned() });
    }
    Ok(text)
}

fn resolve_file_name(object: &mut Map<String, Value>, field: &[&str], directory: &Path) {
    let [name, inner @ ..] = field else { return };
    match object.get_mut(*name) {
        Some(Value::Object(object)) if !inner.is_empty() => {
            resolve_file_name(object, inner, directory);
        }
        Some(Value::String(file)) if inner.is_empty() && !file.is_empty() => {
            if !Path::new(file).is_absolute()
                && let Some(joined) = directory.join(&*file).to_str()
            {
                *file = joined.to_owned();
            }
        }
        _ => {}
    }
}
