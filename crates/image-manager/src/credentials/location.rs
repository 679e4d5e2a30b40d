//! Places of registries, as image names and credentials write them: `host[:port][/path]`.

/// A registry, or a part of one. A credential's may have `*` in its host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RegistryLocation {
    host: String,
    port: String,
    path: String,
}

/// A text is no place of a registry.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum InvalidLocation {
    /// The host has a character that no host may have.
    #[error("invalid character {0:?} in host name")]
    HostCharacter(char),
    /// An IPv6 address is not closed.
    #[error("missing ']' in host")]
    OpenBracket,
    /// The port is no number.
    #[error("invalid port {0:?} after host")]
    Port(String),
}

impl RegistryLocation {
    /// Reads a place without a scheme.
    pub(crate) fn parse(text: &str) -> Result<Self, InvalidLocation> {
        let text = text.split(['#', '?']).next().unwrap_or_default();
        let (authority, path) = match text.find('/') {
            Some(slash) => text.split_at(slash),
            None => (text, ""),
        };
        // As in any URL, what comes before an `@` is not the host.
        let authority = authority.rsplit('@').next().unwrap_or_default();
        let (host, port) = match authority.strip_prefix('[') {
            Some(rest) => {
                let (address, port) = rest.split_once(']').ok_or(InvalidLocation::OpenBracket)?;
                (address, port)
            }
            None => match authority.find(':') {
                Some(colon) => authority.split_at(colon),
                None => (authority, ""),
            },
        };
        let is_port = port.is_empty()
            || port.strip_prefix(':').is_some_and(|port| port.bytes().all(|b| b.is_ascii_digit()));
        if !is_port {
            return Err(InvalidLocation::Port(port.to_owned()));
        }
        let is_bad = |c: &char| c.is_ascii() && !c.is_ascii_alphanumeric() && !HOST.contains(*c);
        if let Some(bad) = host.chars().find(is_bad) {
            return Err(InvalidLocation::HostCharacter(bad));
        }
        let (host, port) = (host.to_owned(), port.trim_start_matches(':').to_owned());
        Ok(Self { host, port, path: path.to_owned() })
    }

    /// Everything in `target` is beneath this place: same port, same number of host parts, each of
    /// which fits, and a path that begins with this one's.
    pub(crate) fn covers(&self, target: &Self) -> bool {
        self.port == target.port
            && target.path.starts_with(&self.path)
            && self.host.split('.').count() == target.host.split('.').count()
            && self.host.split('.').zip(target.host.split('.')).all(|(glob, part)| fits(glob, part))
    }
}

/// What a host may hold beside letters and digits.
const HOST: &str = "-_.~!$&'()*+,;=:";

/// `*` stands for any text within one part of a host.
fn fits(glob: &str, part: &str) -> bool {
    let mut pieces = glob.split('*');
    let first = pieces.next().unwrap_or_default();
    let Some(mut rest) = part.strip_prefix(first) else { return false };
    let mut pieces: Vec<&str> = pieces.collect();
    let Some(last) = pieces.pop() else { return rest.is_empty() };
    for piece in pieces {
        match rest.find(piece) {
            Some(found) => rest = &rest[found + piece.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn covers(glob: &str, target: &str) -> bool {
        let parse = |text| RegistryLocation::parse(text).unwrap();
        parse(glob).covers(&parse(target))
    }

    #[test]
    fn places_cover_what_is_beneath_them() {
        for (glob, target, expected) in [
            ("*.kubernetes.io", "prefix.kubernetes.io/image", true),
            ("prefix.*.io", "prefix.kubernetes.io", true),
            ("prefix.kubernetes.*", "prefix.kubernetes.io", true),
            ("*-good.kubernetes.io", "prefix-good.kubernetes.io", true),
            ("*.*.kubernetes.io", "a.b.kubernetes.io", true),
            ("*a*b*.io", "xaxbx.io", true),
            ("*a*a.io", "a.io", false),
            ("*.kubernetes.io", "kubernetes.io", false),
            ("*.kubernetes.io", "a.b.kubernetes.io", false),
            ("kubernetes.io", "kubernetes.com", false),
            ("k*.io", "quay.io", false),
            ("r.io/team", "r.io/team/app", true),
            ("r.io/team", "r.io/teams/app", true),
            ("r.io/team/", "r.io/teams/app", false),
            ("r.io/team", "r.io", false),
            ("r.io/*", "r.io/team", false),
            ("r.io:5000", "r.io:5000/app", true),
            ("r.io:5000", "r.io/app", false),
            ("r.io", "r.io:5000/app", false),
            ("*.r.io:5000", "a.r.io:5000/app", true),
            ("*", "localhost/app", true),
            ("[::1]:5000", "[::1]:5000/app", true),
            ("[::1]:5000", "[::2]:5000/app", false),
            ("user@r.io", "r.io/app", true),
            ("r.io?x=y#z", "r.io/app", true),
            ("", "", true),
        ] {
            assert_eq!(covers(glob, target), expected, "{glob} {target}");
        }
    }

    #[test]
    fn what_is_no_place_is_refused() {
        for (text, expected) in [
            ("r.io:http", "invalid port \":http\" after host"),
            ("[::1/a", "missing ']' in host"),
            ("[::1]a", "invalid port \"a\" after host"),
            ("r io", "invalid character ' ' in host name"),
            ("r\\.io", "invalid character '\\\\' in host name"),
        ] {
            let error = RegistryLocation::parse(text).unwrap_err();
            assert_eq!(error.to_string(), expected, "{text}");
        }
    }

    proptest! {
        #[test]
        fn a_star_fits_whatever_it_replaces(
            before in "[ab]{0,3}",
            any in "[ab]{0,4}",
            after in "[ab]{0,3}",
        ) {
            let (glob, part) = (format!("{before}*{after}"), format!("{before}{any}{after}"));
            prop_assert!(fits(&glob, &part));
        }

        #[test]
        fn no_text_panics(one in "\\PC{0,20}", other in "[*a./:@]{0,20}") {
            let parsed = [one, other].map(|text| RegistryLocation::parse(&text));
            if let [Ok(one), Ok(other)] = parsed {
                one.covers(&other);
                other.covers(&one);
            }
        }
    }
}
