//! Image references as container tools write them: `busybox`, `quay.io/a/b:tag`,
//! `host:5000/a@sha256:...`. Pure.

/// The longest path of a repository, in bytes.
const REPOSITORY_PATH_MAX: usize = 255;
/// The longest tag, in bytes.
const TAG_MAX: usize = 128;
const DEFAULT_REGISTRY: &str = "docker.io";
const LEGACY_DEFAULT_REGISTRY: &str = "index.docker.io";
/// Where the default registry keeps repositories that are written as a single word.
const OFFICIAL_REPOSITORIES: &str = "library/";
const DEFAULT_TAG: &str = "latest";

/// An image reference in its parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageReference {
    /// Registry and path, in full (`docker.io/library/busybox`): what credentials are looked up by.
    pub repository: String,
    /// The tag, if written.
    pub tag: Option<String>,
    /// The digest with its algorithm, if written.
    pub digest: Option<String>,
}

/// Why a text is no image reference.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidReference {
    /// It does not follow the grammar.
    #[error("invalid reference format")]
    Format,
    /// Only its upper-case letters are wrong.
    #[error("invalid reference format: repository name ({path}) must be lowercase")]
    UpperCasePath {
        /// The repository's path.
        path: String,
    },
    /// Only its upper-case letters are wrong, and they are not in the path.
    #[error("repository name must be lowercase")]
    UpperCase,
    /// It could be taken for an image id.
    #[error("invalid repository name ({name}), cannot specify 64-byte hexadecimal strings")]
    LooksLikeId {
        /// The name.
        name: String,
    },
    /// The repository's path is too long.
    #[error("repository name must not be more than {REPOSITORY_PATH_MAX} characters")]
    TooLong,
    /// The digest's algorithm is unknown.
    #[error("unsupported digest algorithm")]
    DigestAlgorithm,
    /// The digest has another length than its algorithm makes.
    #[error("invalid checksum digest length")]
    DigestLength,
    /// The digest is not lower-case hexadecimal.
    #[error("invalid checksum digest format")]
    DigestFormat,
}

/// Reads an image reference.
///
/// # Errors
/// When `text` is none; the words are those that container tools use.
pub fn parse_image_reference(text: &str) -> Result<ImageReference, InvalidReference> {
    if text.len() == 64 && text.bytes().all(is_lower_hex) {
        return Err(InvalidReference::LooksLikeId { name: text.to_owned() });
    }
    let (registry, remainder) = split_registry(text);
    let path = remainder.split(':').next().unwrap_or_default();
    if path.to_lowercase() != path {
        return Err(InvalidReference::UpperCasePath { path: path.to_owned() });
    }
    let full = format!("{registry}/{remainder}");
    let Some(reference) = split_reference(&full) else {
        return Err(if split_reference(&full.to_lowercase()).is_some() {
            InvalidReference::UpperCase
        } else {
            InvalidReference::Format
        });
    };
    let repository_path = match reference.repository.split_once('/') {
        Some((host, path)) if is_host_and_port(host) => path,
        _ => reference.repository.as_str(),
    };
    if repository_path.len() > REPOSITORY_PATH_MAX {
        return Err(InvalidReference::TooLong);
    }
    if let Some(digest) = &reference.digest {
        check_digest(digest)?;
    }
    Ok(reference)
}

/// The reference that is pulled for `text`: with the tag `latest` if it has neither tag nor
/// digest. The registry is left as written, so that the runtime's own defaults hold.
///
/// # Errors
/// When `text` is no image reference.
pub fn with_default_tag(text: &str) -> Result<(String, ImageReference), InvalidReference> {
    let reference = parse_image_reference(text)?;
    let image = if reference.tag.is_none() && reference.digest.is_none() {
        format!("{text}:{DEFAULT_TAG}")
    } else {
        text.to_owned()
    };
    Ok((image, reference))
}

/// `text` as it is written, without its tag and digest; none if it is no image reference.
pub(crate) fn name_without_tag(text: &str) -> Option<&str> {
    let reference = parse_image_reference(text).ok()?;
    let rest = match &reference.digest {
        Some(digest) => text.strip_suffix(digest.as_str())?.strip_suffix('@')?,
        None => text,
    };
    match &reference.tag {
        Some(tag) => rest.strip_suffix(tag.as_str())?.strip_suffix(':'),
        None => Some(rest),
    }
}

fn split_registry(text: &str) -> (&str, String) {
    let (registry, remainder) = match text.split_once('/') {
        Some((first, rest))
            if first.contains(['.', ':'])
                || first == "localhost"
                || first.to_lowercase() != first =>
        {
            (first, rest)
        }
        _ => (DEFAULT_REGISTRY, text),
    };
    let registry = if registry == LEGACY_DEFAULT_REGISTRY { DEFAULT_REGISTRY } else { registry };
    if registry == DEFAULT_REGISTRY && !remainder.contains('/') {
        return (registry, format!("{OFFICIAL_REPOSITORIES}{remainder}"));
    }
    (registry, remainder.to_owned())
}

/// Splits `registry/path[:tag][@digest]`; none if a part breaks the grammar.
fn split_reference(full: &str) -> Option<ImageReference> {
    let (rest, digest) = match full.split_once('@') {
        Some((rest, digest)) => (rest, Some(digest)),
        None => (full, None),
    };
    let last_element = rest.rfind('/').map_or(0, |slash| slash + 1);
    let (repository, tag) = match rest[last_element..].find(':') {
        Some(colon) => (&rest[..last_element + colon], Some(&rest[last_element + colon + 1..])),
        None => (rest, None),
    };
    let well_formed =
        is_repository(repository) && tag.is_none_or(is_tag) && digest.is_none_or(is_digest);
    well_formed.then(|| ImageReference {
        repository: repository.to_owned(),
        tag: tag.map(str::to_owned),
        digest: digest.map(str::to_owned),
    })
}

fn is_repository(repository: &str) -> bool {
    let is_path = |path: &str| path.split('/').all(is_path_component);
    repository.split_once('/').is_some_and(|(host, path)| is_host_and_port(host) && is_path(path))
        || is_path(repository)
}

/// Lower-case letters and digits, joined by a dot, one or two underscores, or dashes.
fn is_path_component(component: &str) -> bool {
    let is_word = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = component.as_bytes();
    if !(bytes.first().is_some_and(is_word) && bytes.last().is_some_and(is_word)) {
        return false;
    }
    bytes.split(is_word).filter(|separator| !separator.is_empty()).all(|separator| {
        matches!(separator, b"." | b"_" | b"__") || separator.iter().all(|b| *b == b'-')
    })
}

fn is_host_and_port(host_and_port: &str) -> bool {
    let (host, port) = match host_and_port.strip_prefix('[') {
        Some(rest) => {
            let Some((address, port)) = rest.split_once(']') else { return false };
            let is_address = !address.is_empty()
                && address.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b':');
            if !is_address {
                return false;
            }
            match port.strip_prefix(':') {
                Some(port) => (None, Some(port)),
                None if port.is_empty() => (None, None),
                None => return false,
            }
        }
        None => match host_and_port.split_once(':') {
            Some((host, port)) => (Some(host), Some(port)),
            None => (Some(host_and_port), None),
        },
    };
    let is_port = |port: &str| !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit());
    host.is_none_or(|host| host.split('.').all(is_host_label)) && port.is_none_or(is_port)
}

fn is_host_label(label: &str) -> bool {
    let bytes = label.as_bytes();
    bytes.first().is_some_and(u8::is_ascii_alphanumeric)
        && bytes.last().is_some_and(u8::is_ascii_alphanumeric)
        && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'-')
}

fn is_tag(tag: &str) -> bool {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    tag.len() <= TAG_MAX
        && tag.bytes().next().is_some_and(is_word)
        && tag.bytes().all(|byte| is_word(byte) || matches!(byte, b'.' | b'-'))
}

fn is_digest(digest: &str) -> bool {
    let Some((algorithm, encoded)) = digest.split_once(':') else { return false };
    let is_word = |word: &str| {
        word.bytes().next().is_some_and(|byte| byte.is_ascii_alphabetic())
            && word.bytes().all(|byte| byte.is_ascii_alphanumeric())
    };
    algorithm.split(['-', '_', '+', '.']).all(is_word)
        && encoded.len() >= 32
        && encoded.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn check_digest(digest: &str) -> Result<(), InvalidReference> {
    let (algorithm, encoded) = digest.split_once(':').ok_or(InvalidReference::Format)?;
    let length = match algorithm {
        "sha256" => 64,
        "sha384" => 96,
        "sha512" => 128,
        _ => return Err(InvalidReference::DigestAlgorithm),
    };
    if encoded.len() != length {
        return Err(InvalidReference::DigestLength);
    }
    if !encoded.bytes().all(is_lower_hex) {
        return Err(InvalidReference::DigestFormat);
    }
    Ok(())
}

fn is_lower_hex(byte: u8) -> bool {
    byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SHA: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    #[test]
    fn the_default_tag_is_added_and_the_repository_is_normalised() {
        let digested = format!("busybox@sha256:{SHA}");
        let both = format!("quay.io/a/b:v1@sha256:{SHA}");
        for (text, image, repository) in [
            ("busybox", "busybox:latest", "docker.io/library/busybox"),
            ("busybox:1.36", "busybox:1.36", "docker.io/library/busybox"),
            ("user/app", "user/app:latest", "docker.io/user/app"),
            (
                "index.docker.io/busybox",
                "index.docker.io/busybox:latest",
                "docker.io/library/busybox",
            ),
            ("localhost/app", "localhost/app:latest", "localhost/app"),
            ("host:5000/app", "host:5000/app:latest", "host:5000/app"),
            ("host:5000/app:x", "host:5000/app:x", "host:5000/app"),
            ("127.0.0.1:5000/a", "127.0.0.1:5000/a:latest", "127.0.0.1:5000/a"),
            ("[::1]:5000/a/b", "[::1]:5000/a/b:latest", "[::1]:5000/a/b"),
            ("Registry/app", "Registry/app:latest", "Registry/app"),
            ("a__b/c-----d.e_f", "a__b/c-----d.e_f:latest", "docker.io/a__b/c-----d.e_f"),
            ("a_b.c/d", "a_b.c/d:latest", "a_b.c/d"),
            (&digested, &digested, "docker.io/library/busybox"),
            (&both, &both, "quay.io/a/b"),
        ] {
            let (pulled, reference) = with_default_tag(text).unwrap();
            assert_eq!((pulled.as_str(), reference.repository.as_str()), (image, repository));
        }
    }

    #[test]
    fn a_name_stays_as_it_is_written() {
        let both = format!("r.io:5000/a:v1@sha256:{SHA}");
        for (text, expected) in [
            ("busybox", Some("busybox")),
            ("busybox:1", Some("busybox")),
            ("r.io:5000/a", Some("r.io:5000/a")),
            (&both, Some("r.io:5000/a")),
            (&both[..both.len() - 1], None),
            ("No", None),
        ] {
            assert_eq!(name_without_tag(text), expected, "{text}");
        }
    }

    #[test]
    fn what_is_no_reference_is_refused_in_known_words() {
        let long = "a/".repeat(128) + "a";
        let upper = format!("a@sha256:{}", SHA.to_uppercase());
        let short = format!("a@sha256:{}", &SHA[..40]);
        let md5 = format!("a@md5:{}", &SHA[..32]);
        let upper_algorithm = format!("a@Sha256:{SHA}");
        for (text, expected) in [
            ("", "invalid reference format"),
            (":", "invalid reference format"),
            ("a:", "invalid reference format"),
            ("a:b:c", "invalid reference format"),
            ("a@b", "invalid reference format"),
            ("-a", "invalid reference format"),
            ("a..b", "invalid reference format"),
            ("a___b", "invalid reference format"),
            ("a//b", "invalid reference format"),
            ("a b", "invalid reference format"),
            ("a:-tag", "invalid reference format"),
            ("http://a/b", "invalid reference format"),
            ("host:port/a", "invalid reference format"),
            ("[::1/a", "invalid reference format"),
            ("[]/a", "invalid reference format"),
            ("[::1]x/a", "invalid reference format"),
            (
                "Busybox",
                "invalid reference format: repository name (library/Busybox) must be lowercase",
            ),
            (
                "quay.io/A/b:Tag",
                "invalid reference format: repository name (A/b) must be lowercase",
            ),
            (
                SHA,
                "invalid repository name \
                 (0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef), cannot \
                 specify 64-byte hexadecimal strings",
            ),
            (&long, "repository name must not be more than 255 characters"),
            (&upper, "invalid checksum digest format"),
            (&short, "invalid checksum digest length"),
            (&md5, "unsupported digest algorithm"),
            (
                &upper_algorithm,
                "invalid reference format: repository name (library/a@Sha256) must be lowercase",
            ),
        ] {
            let error = parse_image_reference(text).map_err(|error| error.to_string());
            assert_eq!(error, Err(expected.to_owned()), "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "\\PC{0,40}") {
            let _ = parse_image_reference(&text);
        }

        #[test]
        fn what_grammar_builds_is_read_back(
            host in prop::option::of("[a-z0-9]{1,5}\\.[a-zA-Z0-9]{1,5}(:[0-9]{1,4})?"),
            path in "[a-z0-9]{1,5}([._-][a-z0-9]{1,3})?(/[a-z0-9]{1,5}){1,2}",
            tag in prop::option::of("[a-zA-Z0-9_][a-zA-Z0-9_.-]{0,10}"),
            digest in prop::option::of("sha256:[a-f0-9]{64}"),
        ) {
            // Without a registry a first element with a dot would be taken for one.
            let path = if host.is_none() { path.replace('.', "_") } else { path };
            let mut text = host.as_ref().map_or(String::new(), |host| format!("{host}/"));
            text += &path;
            if let Some(tag) = &tag { text += &format!(":{tag}"); }
            if let Some(digest) = &digest { text += &format!("@{digest}"); }
            let (image, reference) = with_default_tag(&text).unwrap();
            let registry = host.as_deref().unwrap_or("docker.io");
            prop_assert_eq!(&reference.repository, &format!("{registry}/{path}"));
            prop_assert_eq!(reference.tag.as_deref(), tag.as_deref());
            prop_assert_eq!(reference.digest.as_deref(), digest.as_deref());
            prop_assert!(with_default_tag(&image).unwrap().0 == image);
        }
    }
}
