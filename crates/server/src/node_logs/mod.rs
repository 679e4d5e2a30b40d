//! `/logs/`: the files beneath `/var/log`, to be looked through with a browser, and if so configured
//! the logs of services, to be asked for by name.

mod journal;
mod query;

use std::fmt::Write as _;
use std::fs::{File, Metadata};
use std::io;
use std::path::{Path, PathBuf};

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use bytes::BytesMut;
use futures_util::stream;
use http::{StatusCode, header};
use jiff::Timestamp;
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2, readlinkat};
use rustix::io::Errno;
use tokio::io::{AsyncReadExt, AsyncSeekExt};
use tokio::task::spawn_blocking;

use query::{BadQuery, LogQuery};

/// Where a node's logs are.
pub(crate) const NODE_LOGS: &str = "/var/log";

/// Absolute links that are followed one after the other.
const MAX_LINKS: usize = 8;
/// Bytes of a file that are sent at once.
const PIECE: usize = 64 * 1024;
/// Bytes by which text is told from anything else.
const SNIFFED: usize = 512;

/// Answers a query for logs of services; a request that is none, as [`serve`] does.
pub(crate) async fn serve_query(
    directory: &'static str,
    path: String,
    query: &[(String, String)],
) -> Response {
    match LogQuery::parse(query, !path.trim_matches('/').is_empty()) {
        Ok(None) => serve(directory, path).await,
        Ok(Some(LogQuery::File(file))) => serve(directory, file).await,
        Ok(Some(LogQuery::Services { names, options })) => {
            journal::serve(directory, names, options)
        }
        Err(BadQuery::Malformed(text)) => {
            (StatusCode::BAD_REQUEST, format!("{text}\n")).into_response()
        }
        Err(BadQuery::NotAcceptable(text)) => {
            (StatusCode::NOT_ACCEPTABLE, format!("{text}\n")).into_response()
        }
    }
}

/// Answers a request for `path`, which is percent-decoded, beneath `directory`.
pub(crate) async fn serve(directory: &'static str, path: String) -> Response {
    let looked = spawn_blocking(move || look(Path::new(directory), &path)).await;
    match looked.map_err(io::Error::other).and_then(|found| found) {
        Ok(Found::Listing(html)) => {
            ([(header::CONTENT_TYPE, "text/html; charset=utf-8")], html).into_response()
        }
        Ok(Found::Elsewhere(location)) => {
            (StatusCode::MOVED_PERMANENTLY, [(header::LOCATION, location)]).into_response()
        }
        Ok(Found::File { file, metadata, name }) => send(file, &metadata, &name).await,
        Err(error) => refuse(&error),
    }
}

fn refuse(error: &io::Error) -> Response {
    let (status, text) = match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory | io::ErrorKind::InvalidInput => {
            (StatusCode::NOT_FOUND, "404 page not found\n")
        }
        io::ErrorKind::PermissionDenied => (StatusCode::FORBIDDEN, "403 Forbidden\n"),
        _ => (StatusCode::INTERNAL_SERVER_ERROR, "500 Internal Server Error\n"),
    };
    (status, text).into_response()
}

enum Found {
    Listing(String),
    /// The path has a slash at its end that it should not have, or the other way round.
    Elsewhere(String),
    File {
        file: File,
        metadata: Metadata,
        name: String,
    },
}

/// The path without what means nothing, and without going up.
fn clean(path: &str) -> PathBuf {
    let mut parts = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.iter().collect()
}

fn look(directory: &Path, path: &str) -> io::Result<Found> {
    let cleaned = clean(path);
    let file = open(directory, &cleaned)?;
    let metadata = file.metadata()?;
    let name = cleaned.file_name().map(|name| name.to_string_lossy().into_owned());
    let has_slash = path.is_empty() || path.ends_with('/');
    match (metadata.is_dir(), metadata.is_file(), name) {
        (true, _, Some(name)) if !has_slash => Ok(Found::Elsewhere(format!("{}/", escaped(&name)))),
        (true, ..) => Ok(Found::Listing(listing(&file)?)),
        (false, true, Some(name)) if has_slash => {
            Ok(Found::Elsewhere(format!("../{}", escaped(&name))))
        }
        (false, true, Some(name)) => Ok(Found::File { file, metadata, name }),
        _ => Err(io::ErrorKind::NotFound.into()),
    }
}

/// Opens a path beneath `directory`. Links are followed as far as they lead to something beneath,
/// such as those of `containers/` to `pods/`; no other is.
fn open(directory: &Path, path: &Path) -> io::Result<File> {
    let root = openat(CWD, directory, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let mut path = path.to_owned();
    for _ in 0..MAX_LINKS {
        let at = if path.as_os_str().is_empty() { Path::new(".") } else { &path };
        // What is no file, such as a pipe, is not waited for.
        let flags = OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        match openat2(&root, at, flags, Mode::empty(), beneath) {
            Ok(file) => return Ok(File::from(file)),
            Err(Errno::XDEV) => {}
            Err(Errno::NXIO) => return Err(io::ErrorKind::NotFound.into()),
            Err(error) => return Err(error.into()),
        }
        // It leads out, or says where it leads from the very top.
        let Some(name) = path.file_name() else { break };
        let above = path.parent().filter(|above| !above.as_os_str().is_empty());
        let above = above.unwrap_or(Path::new("."));
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let above = openat2(&root, above, flags, Mode::empty(), beneath)?;
        let target = readlinkat(&above, name, Vec::new())?;
        let target = PathBuf::from(target.to_string_lossy().into_owned());
        let Ok(rest) = target.strip_prefix(directory) else { break };
        path = clean(&rest.to_string_lossy());
    }
    Err(io::ErrorKind::PermissionDenied.into())
}

/// What a directory holds, as a page of links.
fn listing(directory: &File) -> io::Result<String> {
    let mut names = Vec::new();
    for entry in rustix::fs::Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy();
        if name != "." && name != ".." {
            let slash = if entry.file_type().is_dir() { "/" } else { "" };
            names.push(format!("{name}{slash}"));
        }
    }
    names.sort_unstable();
    let mut page =
        "<!doctype html>\n<meta name=\"viewport\" content=\"width=device-width\">\n<pre>\n"
            .to_owned();
    for name in names {
        let _ = writeln!(page, "<a href=\"{}\">{}</a>", escaped(&name), shown(&name));
    }
    page.push_str("</pre>\n");
    Ok(page)
}

/// A name as part of a link.
fn escaped(name: &str) -> String {
    let mut link = String::new();
    // What is before a colon would be a scheme.
    if name.split('/').next().is_some_and(|first| first.contains(':')) {
        link.push_str("./");
    }
    for byte in name.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' | b'/' | b':' => {
                link.push(char::from(byte));
            }
            byte => drop(write!(link, "%{byte:02X}")),
        }
    }
    link
}

/// A name as text of a page.
fn shown(name: &str) -> String {
    name.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&#34;")
        .replace('\'', "&#39;")
}

/// Sends as much of a file as there is now, piece by piece.
async fn send(file: File, metadata: &Metadata, name: &str) -> Response {
    let length = metadata.len();
    let mut file = tokio::fs::File::from_std(file);
    let kind = match content_type(&mut file, name).await {
        Ok(kind) => kind,
        Err(error) => return refuse(&error),
    };
    let pieces = stream::try_unfold((file, length), |(mut file, left)| async move {
        let room = usize::try_from(left).unwrap_or(PIECE).min(PIECE);
        let mut piece = BytesMut::zeroed(room);
        let read = if room == 0 { 0 } else { file.read(&mut piece).await? };
        if read == 0 {
            // Whoever made it shorter meanwhile has the connection broken off.
            let result =
                if left == 0 { Ok(None) } else { Err(io::ErrorKind::UnexpectedEof.into()) };
            return result;
        }
        piece.truncate(read);
        let left = left.saturating_sub(read as u64);
        Ok::<_, io::Error>(Some((piece.freeze(), (file, left))))
    });
    let mut response = (
        [(header::CONTENT_TYPE, kind.to_owned()), (header::CONTENT_LENGTH, length.to_string())],
        Body::from_stream(pieces),
    )
        .into_response();
    let modified = metadata.modified().ok().and_then(|at| Timestamp::try_from(at).ok());
    if let Some(modified) = modified {
        let text = modified.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string();
        if let Ok(value) = text.try_into() {
            response.headers_mut().insert(header::LAST_MODIFIED, value);
        }
    }
    response
}

async fn content_type(file: &mut tokio::fs::File, name: &str) -> io::Result<&'static str> {
    if name.ends_with(".gz") {
        return Ok("application/gzip");
    }
    let mut start = [0; SNIFFED];
    let read = file.read(&mut start).await?;
    file.rewind().await?;
    let is_text = start[..read]
        .iter()
        .all(|byte| matches!(byte, b'\t' | b'\n' | b'\r' | 0x0c | 0x1b | 0x20..));
    Ok(if is_text { "text/plain; charset=utf-8" } else { "application/octet-stream" })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use http_body_util::BodyExt;

    use super::*;

    /// A directory of logs, and one beside it, for as long as the tests run.
    fn logs() -> &'static str {
        let directory = tempfile::tempdir().unwrap().keep();
        let logs = directory.join("log");
        std::fs::create_dir_all(logs.join("pods/a")).unwrap();
        std::fs::create_dir_all(logs.join("containers")).unwrap();
        std::fs::write(directory.join("secret"), "secret").unwrap();
        std::fs::write(logs.join("syslog"), "a line\n").unwrap();
        std::fs::write(logs.join("wtmp"), [1, 0, 2]).unwrap();
        std::fs::write(logs.join("a&b: c"), "").unwrap();
        std::fs::write(logs.join("pods/a/0.log"), vec![b'x'; 3 * PIECE + 1]).unwrap();
        symlink(logs.join("pods/a/0.log"), logs.join("containers/a.log")).unwrap();
        symlink("../pods/a/0.log", logs.join("containers/b.log")).unwrap();
        symlink("../secret", logs.join("up")).unwrap();
        symlink(directory.join("secret"), logs.join("away")).unwrap();
        symlink(logs.join("round"), logs.join("round")).unwrap();
        rustix::fs::mknodat(CWD, logs.join("pipe"), rustix::fs::FileType::Fifo, Mode::RUSR, 0)
            .unwrap();
        logs.to_str().unwrap().to_owned().leak()
    }

    async fn get(directory: &'static str, path: &str) -> (u16, String, Vec<u8>) {
        let response = serve(directory, path.to_owned()).await;
        let header =
            |name| response.headers().get(name).map(|value| value.to_str().unwrap().to_owned());
        let said = header(header::LOCATION).or(header(header::CONTENT_TYPE)).unwrap_or_default();
        let status = response.status().as_u16();
        (status, said, response.into_body().collect().await.unwrap().to_bytes().to_vec())
    }

    #[tokio::test]
    async fn files_are_sent_and_directories_listed() {
        let logs = logs();
        let text = "text/plain; charset=utf-8".to_owned();
        assert_eq!(get(logs, "syslog").await, (200, text.clone(), b"a line\n".to_vec()));
        assert_eq!(get(logs, "./pods/../syslog").await.0, 200);
        assert_eq!(get(logs, "wtmp").await.1, "application/octet-stream");
        let large = vec![b'x'; 3 * PIECE + 1];
        assert_eq!(get(logs, "pods/a/0.log").await, (200, text, large));
        let (status, kind, page) = get(logs, "").await;
        assert_eq!((status, kind.as_str()), (200, "text/html; charset=utf-8"));
        let page = String::from_utf8(page).unwrap();
        assert!(page.contains("<a href=\"syslog\">syslog</a>\n"), "{page}");
        assert!(page.contains("<a href=\"pods/\">pods/</a>\n"), "{page}");
        assert!(page.contains("<a href=\"./a%26b:%20c\">a&amp;b: c</a>\n"), "{page}");
        assert!(String::from_utf8(get(logs, "pods/").await.2).unwrap().contains("\"a/\""));
        assert_eq!(get(logs, "pods").await.1, "pods/");
        assert_eq!(get(logs, "syslog/").await.1, "../syslog");
    }

    #[tokio::test]
    async fn links_lead_no_further_than_the_directory() {
        let logs = logs();
        for inside in ["containers/a.log", "containers/b.log"] {
            assert_eq!(get(logs, inside).await.0, 200, "{inside}");
        }
        for outside in ["up", "away", "round"] {
            let (status, _, body) = get(logs, outside).await;
            assert_ne!(status, 200, "{outside}");
            assert!(!body.starts_with(b"secret"), "{outside}");
        }
        for none in ["../secret", "no", "syslog/no", "pipe", "a\0b"] {
            assert_eq!(get(logs, none).await.0, 404, "{none:?}");
        }
    }
}
