use std::fmt;

/// Errors that one rendering lists; the rest is counted.
const MAX_LISTED: usize = 50;

/// What is wrong with a field, in the API's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FieldErrorKind {
    /// The value is missing.
    Required,
    /// The value is malformed or out of range.
    Invalid,
    /// The value is none of those that exist.
    NotSupported,
    /// The value may not stand twice.
    Duplicate,
    /// The value is allowed elsewhere, not here.
    Forbidden,
    /// The value names something that is not there.
    NotFound,
    /// The value has too many bytes.
    TooLong,
    /// The list has too many items.
    TooMany,
}

impl fmt::Display for FieldErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Required => "Required value",
            Self::Invalid => "Invalid value",
            Self::NotSupported => "Unsupported value",
            Self::Duplicate => "Duplicate value",
            Self::Forbidden => "Forbidden",
            Self::NotFound => "Not found",
            Self::TooLong => "Too long",
            Self::TooMany => "Too many",
        })
    }
}

/// One fault of a pod, rendered as the API server does:
/// `spec.containers[0].name: Required value`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FieldError {
    /// What is wrong.
    pub kind: FieldErrorKind,
    /// Where: `spec.containers[0].name`.
    pub field: String,
    /// The offending value as it is shown, where it is shown.
    pub value: Option<String>,
    /// What it should be; may be empty.
    pub detail: String,
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.kind)?;
        if let Some(value) = &self.value {
            write!(f, ": {value}")?;
        }
        if !self.detail.is_empty() {
            write!(f, ": {}", self.detail)?;
        }
        Ok(())
    }
}

/// Everything that is wrong with a pod; never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValidationErrors(Vec<FieldError>);

impl ValidationErrors {
    /// The faults in the order in which they were found.
    pub fn errors(&self) -> &[FieldError] {
        &self.0
    }
}

impl fmt::Display for ValidationErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (index, error) in self.0.iter().take(MAX_LISTED).enumerate() {
            if index > 0 {
                f.write_str(", ")?;
            }
            write!(f, "{error}")?;
        }
        if self.0.len() > MAX_LISTED {
            write!(f, ", and {} more", self.0.len() - MAX_LISTED)?;
        }
        f.write_str("]")
    }
}

impl std::error::Error for ValidationErrors {}

/// A place in the pod.
#[derive(Clone, Debug)]
pub(super) struct FieldPath(String);

impl FieldPath {
    pub(super) fn new(name: &str) -> Self {
        Self(name.to_owned())
    }

    pub(super) fn child(&self, name: &str) -> Self {
        Self(format!("{}.{name}", self.0))
    }

    pub(super) fn index(&self, index: usize) -> Self {
        Self(format!("{}[{index}]", self.0))
    }

    /// An entry of a map.
    pub(super) fn key(&self, key: &str) -> Self {
        Self(format!("{}[{key}]", self.0))
    }
}

/// How an offending value is shown.
pub(super) trait ShownValue {
    fn shown(&self) -> String;
}

impl ShownValue for str {
    fn shown(&self) -> String {
        format!("{self:?}")
    }
}

impl ShownValue for String {
    fn shown(&self) -> String {
        self.as_str().shown()
    }
}

macro_rules! shown_plainly {
    ($($kind:ty)*) => {$(
        impl ShownValue for $kind {
            fn shown(&self) -> String {
                self.to_string()
            }
        }
    )*};
}

shown_plainly! { i32 i64 bool usize }

impl ShownValue for [String] {
    fn shown(&self) -> String {
        let items: Vec<String> = self.iter().map(ShownValue::shown).collect();
        format!("[{}]", items.join(","))
    }
}

/// Collects what is wrong.
#[derive(Debug, Default)]
pub(super) struct Errors(Vec<FieldError>);

impl Errors {
    fn add(&mut self, kind: FieldErrorKind, at: &FieldPath, value: Option<String>, detail: &str) {
        self.0.push(FieldError { kind, field: at.0.clone(), value, detail: detail.to_owned() });
    }

    pub(super) fn required(&mut self, at: &FieldPath, detail: &str) {
        self.add(FieldErrorKind::Required, at, None, detail);
    }

    pub(super) fn invalid(
        &mut self,
        at: &FieldPath,
        value: &(impl ShownValue + ?Sized),
        detail: &str,
    ) {
        self.add(FieldErrorKind::Invalid, at, Some(value.shown()), detail);
    }

    /// One error for each of `faults`.
    pub(super) fn invalid_each(
        &mut self,
        at: &FieldPath,
        value: &(impl ShownValue + ?Sized),
        faults: Vec<String>,
    ) {
        for fault in faults {
            self.invalid(at, value, &fault);
        }
    }

    /// `supported` is listed in the order given.
    pub(super) fn not_supported(&mut self, at: &FieldPath, value: &str, supported: &[&str]) {
        let list: Vec<String> = supported.iter().map(|value| format!("{value:?}")).collect();
        let detail = format!("supported values: {}", list.join(", "));
        self.add(FieldErrorKind::NotSupported, at, Some(value.shown()), &detail);
    }

    pub(super) fn duplicate(&mut self, at: &FieldPath, value: &str) {
        self.add(FieldErrorKind::Duplicate, at, Some(value.shown()), "");
    }

    pub(super) fn forbidden(&mut self, at: &FieldPath, detail: &str) {
        self.add(FieldErrorKind::Forbidden, at, None, detail);
    }

    pub(super) fn not_found(&mut self, at: &FieldPath, value: &str, detail: &str) {
        self.add(FieldErrorKind::NotFound, at, Some(value.shown()), detail);
    }

    pub(super) fn too_long(&mut self, at: &FieldPath, max_bytes: usize) {
        let detail = format!("may not be more than {max_bytes} bytes");
        self.add(FieldErrorKind::TooLong, at, None, &detail);
    }

    pub(super) fn too_many(&mut self, at: &FieldPath, count: usize, max: usize) {
        let detail = format!("must have at most {max} items");
        self.add(FieldErrorKind::TooMany, at, Some(count.shown()), &detail);
    }

    pub(super) fn finish(self) -> Result<(), ValidationErrors> {
        if self.0.is_empty() { Ok(()) } else { Err(ValidationErrors(self.0)) }
    }
}
