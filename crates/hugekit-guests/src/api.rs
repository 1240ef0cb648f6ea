//! The API of a VMM: one HTTP/1.1 request over a Unix socket, and its answer.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;

const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// Longer answers are no VMM's.
const LONGEST_ANSWER: u64 = 1 << 20;

/// Sends a request, without a body if it is null. An answer other than 2xx is an error with the
/// VMM's words.
pub(crate) fn request(socket: &Path, method: &str, path: &str, body: &Value) -> io::Result<()> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(LONGEST_WAIT))?;
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nAccept: application/json\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes())?;
    let (status, answer) = read_answer(&mut BufReader::new(stream.take(LONGEST_ANSWER)))?;
    if (200..300).contains(&status) {
        return Ok(());
    }
    Err(io::Error::other(format!("{method} {path}: {status}: {answer}")))
}

fn read_answer(from: &mut impl BufRead) -> io::Result<(u16, String)> {
    let mut line = String::new();
    from.read_line(&mut line)?;
    let status = line.split(' ').nth(1).and_then(|status| status.parse().ok());
    let status = status.ok_or_else(|| io::Error::other(format!("not an HTTP answer: {line:?}")))?;
    let mut len = 0;
    loop {
        line.clear();
        from.read_line(&mut line)?;
        match line.trim_end().split_once(':') {
            Some((name, value)) if name.eq_ignore_ascii_case("content-length") => {
                len = value.trim().parse().map_err(io::Error::other)?;
            }
            Some(_) => {}
            None => break,
        }
    }
    let mut body = String::new();
    from.take(len).read_to_string(&mut body)?;
    Ok((status, body))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answer_is_its_status_and_body() {
        let mut ok = &b"HTTP/1.1 204 \r\nServer: x\r\n\r\n"[..];
        assert_eq!(read_answer(&mut ok).unwrap(), (204, String::new()));
        let mut refused = &b"HTTP/1.1 400 \r\ncontent-length: 5\r\n\r\nwrong and more"[..];
        assert_eq!(read_answer(&mut refused).unwrap(), (400, "wrong".to_owned()));
        assert!(read_answer(&mut &b"nonsense"[..]).is_err());
    }
}
