//! The serving certificate of a kubelet that was given none.

use std::fs;
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

use jiff::{Timestamp, ToSpan, tz::TimeZone};
use rcgen::{
    CertificateParams, DnType, ExtendedKeyUsagePurpose, KeyPair, KeyUsagePurpose, date_time_ymd,
};
use x509_parser::parse_x509_certificate;

use crate::tls::{TlsError, read_certified_key};

/// Name of the certificate in the certificate directory.
pub const CERTIFICATE_FILE: &str = "kubelet.crt";

/// Name of its key.
pub const KEY_FILE: &str = "kubelet.key";

/// Sees to it that `directory` holds a certificate and its key, and that they are good at `now`: a
/// pair that is there and has not expired is used as it is, whoever made it. The key is readable
/// by its owner alone.
pub(crate) fn ensure_self_signed(
    directory: &Path,
    hostname: &str,
    now: Timestamp,
) -> Result<(), TlsError> {
    let certificate_file = directory.join(CERTIFICATE_FILE);
    let key_file = directory.join(KEY_FILE);
    if is_usable(&certificate_file, &key_file, now) {
        return fs::set_permissions(&key_file, fs::Permissions::from_mode(0o600))
            .map_err(|source| TlsError::Write { path: key_file, source });
    }
    let (certificate, key) = generate(hostname, now)?;
    fs::create_dir_all(directory)
        .map_err(|source| TlsError::Write { path: directory.to_owned(), source })?;
    // The key first: a crash in between leaves a pair that does not match, which is made anew.
    for (path, content, mode) in [(key_file, key, 0o600), (certificate_file, certificate, 0o644)] {
        write_atomically(&path, &content, mode)
            .map_err(|source| TlsError::Write { path, source })?;
    }
    Ok(())
}

fn is_usable(certificate_file: &Path, key_file: &Path, now: Timestamp) -> bool {
    let Ok(pair) = read_certified_key(certificate_file, key_file) else { return false };
    let Some(leaf) = pair.cert.first() else { return false };
    parse_x509_certificate(leaf).is_ok_and(|(_, certificate)| {
        now.as_second() < certificate.validity().not_after.timestamp()
    })
}

/// PEM of a certificate for `hostname` that is good for a year, and of its key.
fn generate(hostname: &str, now: Timestamp) -> Result<(String, String), TlsError> {
    let generated = |source| TlsError::Generate { source };
    let key = KeyPair::generate().map_err(generated)?;
    let mut parameters = CertificateParams::new(vec![hostname.to_owned()]).map_err(generated)?;
    let today = now.to_zoned(TimeZone::UTC).date();
    let date = |date: jiff::civil::Date| {
        date_time_ymd(date.year().into(), date.month().unsigned_abs(), date.day().unsigned_abs())
    };
    // Whole days; a clock that is a little behind must not find it too young.
    parameters.not_before = date(today.saturating_sub(1.day()));
    parameters.not_after = date(today.saturating_add(1.year()));
    parameters
        .distinguished_name
        .push(DnType::CommonName, format!("{hostname}@{}", now.as_second()));
    parameters.key_usages =
        vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
    parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    if hostname.parse::<IpAddr>().is_err() {
        // Whoever is on the node.
        parameters.subject_alt_names.extend(
            CertificateParams::new(vec!["localhost".to_owned()])
                .map_err(generated)?
                .subject_alt_names,
        );
    }
    let certificate = parameters.self_signed(&key).map_err(generated)?;
    Ok((certificate.pem(), key.serialize_pem()))
}

/// Writes beside `path` and renames, so that nobody ever reads half of it.
fn write_atomically(path: &Path, content: &str, mode: u32) -> io::Result<()> {
    let beside = path.with_extension("new");
    match fs::remove_file(&beside) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(&beside)?;
    file.write_all(content.as_bytes())?;
    file.sync_all()?;
    fs::rename(&beside, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn read(directory: &Path) -> (Vec<u8>, Vec<u8>) {
        let read = |name| fs::read(directory.join(name)).unwrap();
        (read(CERTIFICATE_FILE), read(KEY_FILE))
    }

    #[test]
    fn a_pair_is_made_once_and_again_when_it_has_expired_or_is_damaged() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pki");
        let (start, year) = (1_700_000_000, 365 * 24 * 3600);
        ensure_self_signed(&path, "node-1", at(start)).unwrap();
        let first = read(&path);
        let mode = |name| fs::metadata(path.join(name)).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(KEY_FILE), mode(CERTIFICATE_FILE)), (0o600, 0o644));

        fs::set_permissions(path.join(KEY_FILE), fs::Permissions::from_mode(0o644)).unwrap();
        ensure_self_signed(&path, "node-1", at(start + year - 86_400)).unwrap();
        assert_eq!(read(&path), first);
        assert_eq!(mode(KEY_FILE), 0o600);

        ensure_self_signed(&path, "node-1", at(start + year + 86_400)).unwrap();
        let second = read(&path);
        assert!(second.0 != first.0 && second.1 != first.1);

        for damage in [
            (KEY_FILE, first.1),
            (CERTIFICATE_FILE, b"no certificate".to_vec()),
            (KEY_FILE, Vec::new()),
        ] {
            fs::write(path.join(damage.0), damage.1).unwrap();
            ensure_self_signed(&path, "node-1", at(start)).unwrap();
            assert!(is_usable(&path.join(CERTIFICATE_FILE), &path.join(KEY_FILE), at(start)));
        }
        let left: Vec<_> = fs::read_dir(&path).unwrap().map(|it| it.unwrap().file_name()).collect();
        assert_eq!(left.len(), 2, "{left:?}");
    }

    #[test]
    fn the_certificate_names_the_node() {
        let (pem, _) = generate("node-1", at(1_700_000_000)).unwrap();
        let (_, pem) = x509_parser::pem::parse_x509_pem(pem.as_bytes()).unwrap();
        let certificate = pem.parse_x509().unwrap();
        assert_eq!(certificate.subject().to_string(), "CN=node-1@1700000000");
        let names = certificate.subject_alternative_name().unwrap().unwrap();
        let names: Vec<_> = names.value.general_names.iter().map(ToString::to_string).collect();
        assert_eq!(names, ["DNSName(node-1)", "DNSName(localhost)"]);
    }
}
