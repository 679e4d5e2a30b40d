//! KubeletConfiguration, flags, drop-ins, feature gates, validation.
//!
//! [`load()`] turns a command line into an [`Invocation`]; in the usual case that is
//! [`Invocation::Run`] with everything that was configured, defaults in place and checked.
//!
//! The order in which things count is contract:
//!
//! 1. Defaults: those of [`KubeletConfiguration::default`] with `--config`, and those of
//!    [`KubeletConfiguration::legacy_default`] without.
//! 2. The file of `--config`. Unknown fields and duplicate keys are warnings.
//! 3. The drop-ins of `--config-dir`, each a JSON merge patch (RFC 7386) on the configuration so far
//!    *with its defaults*; `null` goes back to the default.
//! 4. Flags. Lists and maps replace what files say, feature gates merge by name.
//!
//! Beside it there is [`read_credential_providers`], for the file of programs that give credentials.
//!
//! Only these two read files; everything else is plain data and total functions on it.

mod catalog;
mod configuration;
mod credential_providers;
mod decode;
mod defaults;
mod feature_gates;
mod flags;
mod go_duration;
mod load;
mod options;
mod parts;
mod validate;

pub use catalog::{feature_gate_names, field_paths, flag_names};
pub use configuration::KubeletConfiguration;
pub use credential_providers::{
    CredentialProvider, CredentialProviderConfigError, TokenAttributes, TokenCacheType,
    read_credential_providers,
};
pub use decode::{API_VERSION, DecodeError, KIND};
pub use feature_gates::{FeatureGateError, FeatureGates, Gate, Stage};
pub use flags::{Deprecation, FlagError, FlagSpec, ValueKind, help_text};
pub use go_duration::{GoDuration, ParseDurationError};
pub use load::{Effective, GivenFlag, Invocation, LoadError, MAX_FILE_BYTES, load};
pub use options::KubeletOptions;
pub use parts::{
    AnonymousAuthentication, CrashLoopBackOff, FormatOptions, HttpHeaders, KubeletAuthentication,
    KubeletAuthorization, LoggingConfiguration, MemoryReservation, MemorySwap, OutputRouting,
    ShutdownGracePeriodByPodPriority, TracingConfiguration, UserNamespaces, VModuleItem,
    WebhookAuthentication, WebhookAuthorization, X509Authentication,
};
pub use validate::{FieldError, ValidationErrors, check_cgroup_version};
