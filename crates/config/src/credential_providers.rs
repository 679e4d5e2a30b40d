//! `CredentialProviderConfig`: which programs give credentials for which images.
//!
//! Unlike the kubelet's own configuration it is read strictly: an unknown field or a key that is
//! set twice is an error, and so is a mistake anywhere.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;

use crate::GoDuration;
use crate::decode::parse_strictly;
use crate::load::MAX_FILE_BYTES;
use crate::validate::is_qualified_name;

const GROUP: &str = "kubelet.config.k8s.io";
const VERSIONS: [&str; 3] = ["v1", "v1beta1", "v1alpha1"];
const KIND: &str = "CredentialProviderConfig";

/// The versions in which a kubelet and a provider may talk.
const API_VERSIONS: [&str; 3] = [
    "credentialprovider.kubelet.k8s.io/v1",
    "credentialprovider.kubelet.k8s.io/v1alpha1",
    "credentialprovider.kubelet.k8s.io/v1beta1",
];
/// The only version that carries tokens of service accounts.
const TOKEN_API_VERSION: &str = API_VERSIONS[0];
const CACHE_TYPES: &str = "ServiceAccount, Token";

/// A program that gives credentials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CredentialProvider {
    /// Its file's name in `--image-credential-provider-bin-dir`.
    pub name: String,
    /// The images it is asked for: `host[:port][/path]`, with `*` for parts of the host.
    pub match_images: Vec<String>,
    /// How long its answers hold if they do not say. Not negative.
    pub default_cache_duration: GoDuration,
    /// `credentialprovider.kubelet.k8s.io/v1`, or the older `v1beta1` and `v1alpha1`.
    pub api_version: String,
    /// Its arguments.
    pub args: Vec<String>,
    /// Its environment, beside the kubelet's own: names and values.
    pub env: Vec<(String, String)>,
    /// Set if it works with tokens of the pods' service accounts.
    pub token: Option<TokenAttributes>,
}

/// How a provider works with tokens of the pods' service accounts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenAttributes {
    /// The audience of the tokens.
    pub audience: String,
    /// What its credentials hang on.
    pub cache_type: TokenCacheType,
    /// It is not asked for pods without a service account.
    pub require_service_account: bool,
    /// Annotations of the service account that it is told; it is not asked where one is missing.
    pub required_annotation_keys: Vec<String>,
    /// Annotations of the service account that it is told where they are there.
    pub optional_annotation_keys: Vec<String>,
}

/// What credentials hang on that were given for a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenCacheType {
    /// On the service account.
    ServiceAccount,
    /// On the token itself, which may be among the credentials.
    Token,
}

/// There is no usable `CredentialProviderConfig`.
#[derive(Debug, thiserror::Error)]
pub enum CredentialProviderConfigError {
    /// The path cannot be looked at.
    #[error("unable to access path {path:?}")]
    Access {
        /// The path of the flag, or a file beneath it.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The directory has no file that could be one.
    #[error("no configuration files found in directory {path:?}")]
    NoFiles {
        /// The directory.
        path: PathBuf,
    },
    /// A file is no configuration, only large.
    #[error("credential provider config {path:?} is larger than {MAX_FILE_BYTES} bytes")]
    TooLarge {
        /// The file.
        path: PathBuf,
    },
    /// A file cannot be understood.
    #[error("error decoding config {path:?}: {problem}")]
    Decode {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// Two providers have one name.
    #[error("duplicate provider name {name:?} found in configuration file(s)")]
    Duplicate {
        /// The name.
        name: String,
    },
    /// It can be understood and must not be so.
    #[error("failed to validate credential provider config: {}", one_or_list(.0))]
    Invalid(Vec<String>),
}

fn one_or_list(problems: &[String]) -> String {
    match problems {
        [problem] => problem.clone(),
        problems => format!("[{}]", problems.join(", ")),
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct WireProvider {
    #[serde(default)]
    name: String,
    #[serde(default)]
    match_images: Vec<String>,
    default_cache_duration: Option<GoDuration>,
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    args: Vec<String>,
    #[serde(default)]
    env: Vec<WireVariable>,
    token_attributes: Option<WireTokenAttributes>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WireVariable {
    #[serde(default)]
    name: String,
    #[serde(default)]
    value: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct WireTokenAttributes {
    #[serde(default)]
    service_account_token_audience: String,
    #[serde(default)]
    cache_type: String,
    require_service_account: Option<bool>,
    #[serde(default)]
    required_service_account_annotation_keys: Vec<String>,
    #[serde(default)]
    optional_service_account_annotation_keys: Vec<String>,
}

/// Reads the file, or the `.json`, `.yaml` and `.yml` files of the directory in the order of their
/// names, that `--image-credential-provider-config` names. `tokens` says that the feature gate
/// `KubeletServiceAccountTokenForCredentialProviders` is on. Blocking.
///
/// # Errors
/// When anything is wrong with any of it.
pub fn read_credential_providers(
    path: &Path,
    tokens: bool,
) -> Result<Vec<CredentialProvider>, CredentialProviderConfigError> {
    use CredentialProviderConfigError as Error;

    let access = |source| Error::Access { path: path.to_owned(), source };
    let mut files = Vec::new();
    if fs::metadata(path).map_err(access)?.is_dir() {
        for entry in fs::read_dir(path).map_err(access)? {
            let entry = entry.map_err(access)?;
            let file = entry.path();
            let ends = file.extension().and_then(|end| end.to_str());
            let is_dir = entry.file_type().map_err(access)?.is_dir();
            if !is_dir && matches!(ends, Some("json" | "yaml" | "yml")) {
                files.push(file);
            }
        }
        files.sort();
        if files.is_empty() {
            return Err(Error::NoFiles { path: path.to_owned() });
        }
    } else {
        files.push(path.to_owned());
    }
    let mut providers = Vec::new();
    let mut names = BTreeSet::new();
    for file in files {
        let text = read_text(&file)?;
        let decoded = decode(&text).map_err(|problem| Error::Decode { path: file, problem })?;
        for provider in decoded {
            if !names.insert(provider.name.clone()) {
                return Err(Error::Duplicate { name: provider.name });
            }
            providers.push(provider);
        }
    }
    validate(providers, tokens).map_err(Error::Invalid)
}

fn read_text(path: &Path) -> Result<String, CredentialProviderConfigError> {
    use CredentialProviderConfigError as Error;

    let mut text = String::new();
    File::open(path)
        .and_then(|file| file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text))
        .map_err(|source| Error::Access { path: path.to_owned(), source })?;
    if u64::try_from(text.len()).unwrap_or(u64::MAX) > MAX_FILE_BYTES {
        return Err(Error::TooLarge { path: path.to_owned() });
    }
    Ok(text)
}

fn decode(text: &str) -> Result<Vec<WireProvider>, String> {
    let mut object = match parse_strictly(text).map_err(|error| error.to_string())? {
        Value::Object(object) => object,
        _ => return Err("the top level must be an object".to_owned()),
    };
    let mut header = |name: &str| match object.remove(name) {
        Some(Value::String(text)) => text,
        _ => String::new(),
    };
    let (api_version, kind) = (header("apiVersion"), header("kind"));
    if kind != KIND {
        return Err(format!("failed to decode {kind:?} (wrong Kind)"));
    }
    let (group, version) = api_version.split_once('/').unwrap_or(("", &api_version));
    if group != GROUP {
        return Err(format!("failed to decode {KIND}, unexpected Group: {group}"));
    }
    if !VERSIONS.contains(&version) {
        return Err(format!("no kind {KIND:?} is registered for version {api_version:?}"));
    }
    let providers = object.remove("providers").unwrap_or_default();
    if let Some(unknown) = object.keys().next() {
        return Err(format!("strict decoding error: unknown field {unknown:?}"));
    }
    let mut providers: Vec<Value> = match providers {
        Value::Null => Vec::new(),
        providers => serde_json::from_value(providers).map_err(|error| error.to_string())?,
    };
    // Only the newest version knows of tokens.
    if version != VERSIONS[0]
        && providers.iter().any(|provider| provider.get("tokenAttributes").is_some())
    {
        return Err("strict decoding error: unknown field \"tokenAttributes\"".to_owned());
    }
    providers.iter_mut().for_each(remove_nulls);
    let decode = |provider| {
        serde_json::from_value(provider)
            .map_err(|error: serde_json::Error| format!("strict decoding error: {error}"))
    };
    providers.into_iter().map(decode).collect()
}

fn remove_nulls(value: &mut Value) {
    if let Value::Object(object) = value {
        object.retain(|_, value| !value.is_null());
        object.values_mut().for_each(remove_nulls);
    }
}

/// Collects mistakes in the words of Kubernetes' validation.
#[derive(Default)]
struct Mistakes(Vec<String>);

impl Mistakes {
    fn required(&mut self, field: &str, detail: &str) {
        let colon = if detail.is_empty() { "" } else { ": " };
        self.0.push(format!("{field}: Required value{colon}{detail}"));
    }

    fn invalid(&mut self, field: &str, value: &str, detail: &str) {
        self.0.push(format!("{field}: Invalid value: {value:?}: {detail}"));
    }

    fn forbidden(&mut self, field: &str, detail: &str) {
        self.0.push(format!("{field}: Forbidden: {detail}"));
    }

    fn unsupported(&mut self, field: &str, value: &str, supported: &[&str]) {
        let supported: Vec<String> = supported.iter().map(|it| format!("{it:?}")).collect();
        let supported = supported.join(", ");
        self.0
            .push(format!("{field}: Unsupported value: {value:?}: supported values: {supported}"));
    }
}

fn validate(
    providers: Vec<WireProvider>,
    tokens: bool,
) -> Result<Vec<CredentialProvider>, Vec<String>> {
    let mut mistakes = Mistakes::default();
    if providers.is_empty() {
        mistakes.required("providers", "at least 1 item in plugins is required");
    }
    let validated: Vec<Option<CredentialProvider>> =
        providers.into_iter().map(|provider| provider.validate(tokens, &mut mistakes)).collect();
    if mistakes.0.is_empty() {
        Ok(validated.into_iter().flatten().collect())
    } else {
        Err(mistakes.0)
    }
}

impl WireProvider {
    /// Itself in its checked form. What is wrong is said, and may leave nothing.
    fn validate(self, tokens: bool, mistakes: &mut Mistakes) -> Option<CredentialProvider> {
        let name = &self.name;
        for (is_wrong, detail) in [
            (name.is_empty(), "provider name cannot be empty"),
            (name.contains('/'), "provider name cannot contain '/'"),
            (name.contains(' '), "provider name cannot contain spaces"),
            (name == ".", "provider name cannot be '.'"),
            (name == "..", "provider name cannot be '..'"),
        ] {
            if is_wrong {
                mistakes.invalid("providers.name", name, detail);
            }
        }
        if self.api_version.is_empty() {
            mistakes.required("providers.apiVersion", "");
        } else if !API_VERSIONS.contains(&self.api_version.as_str()) {
            let supported = &API_VERSIONS;
            mistakes.unsupported("providers.apiVersion", &self.api_version, supported);
        }
        if self.match_images.is_empty() {
            let detail = "at least 1 item in matchImages is required";
            mistakes.required("providers.matchImages", detail);
        }
        match self.default_cache_duration {
            None => mistakes.required("providers.defaultCacheDuration", ""),
            Some(duration) if duration.is_negative() => mistakes.invalid(
                "providers.defaultCacheDuration",
                &duration.to_string(),
                "must be greater than or equal to 0",
            ),
            Some(_) => {}
        }
        let token = match self.token_attributes {
            Some(attributes) => Some(attributes.validate(tokens, &self.api_version, mistakes)?),
            None => None,
        };
        Some(CredentialProvider {
            name: self.name,
            match_images: self.match_images,
            default_cache_duration: self.default_cache_duration?,
            api_version: self.api_version,
            args: self.args,
            env: self.env.into_iter().map(|variable| (variable.name, variable.value)).collect(),
            token,
        })
    }
}

impl WireTokenAttributes {
    fn validate(
        self,
        tokens: bool,
        api_version: &str,
        mistakes: &mut Mistakes,
    ) -> Option<TokenAttributes> {
        const FIELD: &str = "providers.tokenAttributes";
        let field = |name: &str| format!("{FIELD}.{name}");
        let required_keys = field("requiredServiceAccountAnnotationKeys");
        if !tokens {
            mistakes.forbidden(
                FIELD,
                "tokenAttributes is not supported when \
                 KubeletServiceAccountTokenForCredentialProviders feature gate is disabled",
            );
        }
        if self.service_account_token_audience.is_empty() {
            mistakes.required(&field("serviceAccountTokenAudience"), "");
        }
        if self.require_service_account.is_none() {
            mistakes.required(&field("requireServiceAccount"), "");
        }
        if api_version != TOKEN_API_VERSION {
            let detail =
                format!("tokenAttributes is only supported for {TOKEN_API_VERSION} API version");
            mistakes.forbidden(FIELD, &detail);
        }
        let required = self.required_service_account_annotation_keys;
        let optional = self.optional_service_account_annotation_keys;
        if self.require_service_account == Some(false) && !required.is_empty() {
            mistakes.forbidden(
                &required_keys,
                "requireServiceAccount cannot be false when \
                 requiredServiceAccountAnnotationKeys is set",
            );
        }
        check_annotation_keys(&required_keys, &required, mistakes);
        check_annotation_keys(&field("optionalServiceAccountAnnotationKeys"), &optional, mistakes);
        if let Some(both) = required.iter().find(|key| optional.contains(key)) {
            mistakes.invalid(FIELD, both, "annotation keys cannot be both required and optional");
        }
        let cache_type = match self.cache_type.as_str() {
            "ServiceAccount" => Some(TokenCacheType::ServiceAccount),
            "Token" => Some(TokenCacheType::Token),
            "" => {
                let detail = format!(
                    "cacheType is required to be set when tokenAttributes is specified. Supported \
                     values are: {CACHE_TYPES}"
                );
                mistakes.required(&field("cacheType"), &detail);
                None
            }
            other => {
                mistakes.unsupported(&field("cacheType"), other, &["ServiceAccount", "Token"]);
                None
            }
        };
        Some(TokenAttributes {
            audience: self.service_account_token_audience,
            cache_type: cache_type?,
            require_service_account: self.require_service_account?,
            required_annotation_keys: required,
            optional_annotation_keys: optional,
        })
    }
}

fn check_annotation_keys(field: &str, keys: &[String], mistakes: &mut Mistakes) {
    let mut seen = BTreeSet::new();
    for key in keys {
        // The rule of annotations: as a label's key, whatever the case.
        if !is_qualified_name(&key.to_lowercase()) {
            mistakes.invalid(field, key, "must be a qualified name");
        }
        if !seen.insert(key) {
            mistakes.0.push(format!("{field}: Duplicate value: {key:?}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const V1: &str = "credentialprovider.kubelet.k8s.io/v1";

    fn good() -> Value {
        json!({ "name": "ecr", "matchImages": ["*.r.io"], "defaultCacheDuration": "10m", "apiVersion": V1 })
    }

    fn good_token() -> Value {
        json!({
            "serviceAccountTokenAudience": "r.io", "cacheType": "Token",
            "requireServiceAccount": true,
            "requiredServiceAccountAnnotationKeys": ["r.io/Id"],
            "optionalServiceAccountAnnotationKeys": ["role"],
        })
    }

    fn read(text: &str, tokens: bool) -> Result<Vec<CredentialProvider>, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.yaml");
        fs::write(&path, text).unwrap();
        let shown = format!("{path:?}");
        read_credential_providers(&path, tokens)
            .map_err(|error| error.to_string().replace(&shown, "FILE"))
    }

    fn read_providers(providers: &Value, tokens: bool) -> Result<Vec<CredentialProvider>, String> {
        let config = json!({
            "apiVersion": "kubelet.config.k8s.io/v1", "kind": KIND, "providers": providers,
        });
        read(&config.to_string(), tokens)
    }

    #[test]
    fn a_whole_configuration_is_read() {
        let text = "
            apiVersion: kubelet.config.k8s.io/v1
            kind: CredentialProviderConfig
            providers:
            - name: ecr
              apiVersion: credentialprovider.kubelet.k8s.io/v1
              matchImages: ['*.dkr.r.io:5000/team']
              defaultCacheDuration: 12h
              args: [get, credentials]
              env: [{name: PROFILE, value: nodes}]
              tokenAttributes:
                serviceAccountTokenAudience: r.io
                cacheType: ServiceAccount
                requireServiceAccount: false
                optionalServiceAccountAnnotationKeys: [r.io/role]
            - name: other
              apiVersion: credentialprovider.kubelet.k8s.io/v1beta1
              matchImages: [q.io]
              defaultCacheDuration: 0s
              env: null
        ";
        let text: String =
            text.lines().map(|line| format!("{}\n", line.get(12..).unwrap_or_default())).collect();
        let provider = |name: &str, api: &str, image: &str, cached| CredentialProvider {
            name: name.to_owned(),
            match_images: vec![image.to_owned()],
            default_cache_duration: cached,
            api_version: format!("credentialprovider.kubelet.k8s.io/{api}"),
            args: Vec::new(),
            env: Vec::new(),
            token: None,
        };
        let ecr = CredentialProvider {
            args: vec!["get".to_owned(), "credentials".to_owned()],
            env: vec![("PROFILE".to_owned(), "nodes".to_owned())],
            token: Some(TokenAttributes {
                audience: "r.io".to_owned(),
                cache_type: TokenCacheType::ServiceAccount,
                require_service_account: false,
                required_annotation_keys: Vec::new(),
                optional_annotation_keys: vec!["r.io/role".to_owned()],
            }),
            ..provider("ecr", "v1", "*.dkr.r.io:5000/team", GoDuration::from_secs(12 * 3600))
        };
        let other = provider("other", "v1beta1", "q.io", GoDuration::ZERO);
        assert_eq!(read(&text, true), Ok(vec![ecr, other]));
    }

    #[test]
    fn files_of_a_directory_are_taken_in_the_order_of_their_names() {
        let dir = tempfile::tempdir().unwrap();
        let names = |path: &Path| {
            read_credential_providers(path, true)
                .map(|all| all.into_iter().map(|one| one.name).collect::<Vec<_>>())
                .map_err(|error| error.to_string())
        };
        let missing = names(&dir.path().join("none")).unwrap_err();
        assert!(missing.starts_with("unable to access path "), "{missing}");
        let empty = names(dir.path()).unwrap_err();
        assert!(empty.starts_with("no configuration files found in directory "), "{empty}");
        for (file, name) in [("b.yml", "b"), ("c.json", "c"), ("a.yaml", "a"), ("d.txt", "d")] {
            let mut provider = good();
            provider["name"] = json!(name);
            let config = json!({
                "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": KIND,
                "providers": [provider],
            });
            fs::write(dir.path().join(file), config.to_string()).unwrap();
        }
        fs::create_dir(dir.path().join("e.yaml")).unwrap();
        assert_eq!(names(dir.path()), Ok(vec!["a".into(), "b".into(), "c".into()]));
        fs::copy(dir.path().join("a.yaml"), dir.path().join("z.yaml")).unwrap();
        assert_eq!(
            names(dir.path()).unwrap_err(),
            "duplicate provider name \"a\" found in configuration file(s)"
        );
    }

    #[test]
    fn what_cannot_be_understood_is_refused() {
        let v1 = "apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\n";
        for (text, expected) in [
            (
                "kind: KubeletConfiguration".to_owned(),
                "failed to decode \"KubeletConfiguration\" (wrong Kind)",
            ),
            (
                "apiVersion: v1\nkind: CredentialProviderConfig".to_owned(),
                "failed to decode CredentialProviderConfig, unexpected Group: ",
            ),
            (
                "apiVersion: kubelet.config.k8s.io/v2\nkind: CredentialProviderConfig".to_owned(),
                "no kind \"CredentialProviderConfig\" is registered for version \"kubelet.config.k8s.io/v2\"",
            ),
            (format!("{v1}more: 1"), "strict decoding error: unknown field \"more\""),
            (
                format!("{v1}providers: [{{names: x}}]"),
                "strict decoding error: unknown field `names`, expected one of `name`, \
                 `matchImages`, `defaultCacheDuration`, `apiVersion`, `args`, `env`, \
                 `tokenAttributes`",
            ),
            (
                format!("{}providers: [{{tokenAttributes: {{}}}}]", v1.replace("/v1", "/v1beta1")),
                "strict decoding error: unknown field \"tokenAttributes\"",
            ),
        ] {
            let expected = format!("error decoding config FILE: {expected}");
            assert_eq!(read(&text, true), Err(expected), "{text}");
        }
        for text in ["[", "", "[]", &format!("{v1}kind: CredentialProviderConfig")] {
            let error = read(text, true).unwrap_err();
            assert!(error.starts_with("error decoding config FILE: "), "{error}");
        }
    }

    #[test]
    fn what_must_not_be_so_is_refused_in_known_words() {
        let with = |field: &str, value: Value| {
            let mut provider = good();
            provider[field] = value;
            json!([provider])
        };
        let with_token = |field: &str, value: Value| {
            let mut attributes = good_token();
            attributes[field] = value;
            with("tokenAttributes", attributes)
        };
        assert_eq!(read_providers(&json!([good()]), false).map(|all| all.len()), Ok(1));
        assert!(read_providers(&with("tokenAttributes", good_token()), true).is_ok());
        for (case, providers, expected) in [
            (
                "none",
                json!([]),
                "providers: Required value: at least 1 item in plugins is required",
            ),
            (
                "name",
                with("name", json!("a/b")),
                "providers.name: Invalid value: \"a/b\": provider name cannot contain '/'",
            ),
            (
                "name",
                with("name", json!("a b")),
                "providers.name: Invalid value: \"a b\": provider name cannot contain spaces",
            ),
            (
                "name",
                with("name", json!(".")),
                "providers.name: Invalid value: \".\": provider name cannot be '.'",
            ),
            (
                "name",
                with("name", json!("..")),
                "providers.name: Invalid value: \"..\": provider name cannot be '..'",
            ),
            (
                "name",
                with("name", json!("")),
                "providers.name: Invalid value: \"\": provider name cannot be empty",
            ),
            ("version", with("apiVersion", json!("")), "providers.apiVersion: Required value"),
            (
                "version",
                with("apiVersion", json!("v1")),
                "providers.apiVersion: Unsupported value: \"v1\": supported values: \
                 \"credentialprovider.kubelet.k8s.io/v1\", \
                 \"credentialprovider.kubelet.k8s.io/v1alpha1\", \
                 \"credentialprovider.kubelet.k8s.io/v1beta1\"",
            ),
            (
                "images",
                with("matchImages", json!([])),
                "providers.matchImages: Required value: at least 1 item in matchImages is required",
            ),
            (
                "time",
                with("defaultCacheDuration", json!(null)),
                "providers.defaultCacheDuration: Required value",
            ),
            (
                "time",
                with("defaultCacheDuration", json!("-1s")),
                "providers.defaultCacheDuration: Invalid value: \"-1s\": must be greater than or equal to 0",
            ),
            (
                "two mistakes",
                json!([{ "name": "a", "matchImages": ["a"] }]),
                "[providers.apiVersion: Required value, providers.defaultCacheDuration: Required value]",
            ),
            (
                "audience",
                with_token("serviceAccountTokenAudience", json!("")),
                "providers.tokenAttributes.serviceAccountTokenAudience: Required value",
            ),
            (
                "require",
                with_token("requireServiceAccount", json!(null)),
                "providers.tokenAttributes.requireServiceAccount: Required value",
            ),
            (
                "require",
                with_token("requireServiceAccount", json!(false)),
                "providers.tokenAttributes.requiredServiceAccountAnnotationKeys: Forbidden: \
                 requireServiceAccount cannot be false when requiredServiceAccountAnnotationKeys is set",
            ),
            (
                "cache",
                with_token("cacheType", json!("")),
                "providers.tokenAttributes.cacheType: Required value: cacheType is required to be \
                 set when tokenAttributes is specified. Supported values are: ServiceAccount, Token",
            ),
            (
                "cache",
                with_token("cacheType", json!("Pod")),
                "providers.tokenAttributes.cacheType: Unsupported value: \"Pod\": supported \
                 values: \"ServiceAccount\", \"Token\"",
            ),
            (
                "keys",
                with_token("optionalServiceAccountAnnotationKeys", json!(["r.io/Id"])),
                "providers.tokenAttributes: Invalid value: \"r.io/Id\": annotation keys cannot be both required and optional",
            ),
            (
                "keys",
                with_token("optionalServiceAccountAnnotationKeys", json!(["a", "a"])),
                "providers.tokenAttributes.optionalServiceAccountAnnotationKeys: Duplicate value: \"a\"",
            ),
            (
                "keys",
                with_token("optionalServiceAccountAnnotationKeys", json!(["a b"])),
                "providers.tokenAttributes.optionalServiceAccountAnnotationKeys: Invalid value: \"a b\": must be a qualified name",
            ),
        ] {
            let expected = format!("failed to validate credential provider config: {expected}");
            assert_eq!(read_providers(&providers, true), Err(expected), "{case}");
        }
        let gate = read_providers(&with("tokenAttributes", good_token()), false).unwrap_err();
        assert!(gate.contains("KubeletServiceAccountTokenForCredentialProviders"), "{gate}");
        let mut old = with("tokenAttributes", good_token());
        old[0]["apiVersion"] = json!("credentialprovider.kubelet.k8s.io/v1beta1");
        let version = read_providers(&old, true).unwrap_err();
        assert!(version.contains("tokenAttributes is only supported for credentialprovider.kubelet.k8s.io/v1 API version"), "{version}");
    }
}
