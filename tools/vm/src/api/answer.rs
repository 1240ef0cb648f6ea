//! An answer of a VMM, parsed from the bytes that have arrived.

use std::io;

use httparse::{Header, Response, Status};

/// The highest length of an answer in bytes. No VMM sends longer answers.
const LONGEST: usize = 1 << 20;

/// The highest number of header fields. No VMM sends more.
const MOST_FIELDS: usize = 32;

/// The answer to a request: HTTP status and body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The HTTP status.
    pub status: u16,
    /// The body, with U+FFFD for bytes that are not UTF-8.
    pub body: String,
}

impl Answer {
    /// Returns true if the VMM has carried out the request.
    #[must_use]
    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// Parses an answer. `None` if more bytes must arrive.
    pub(crate) fn parse(text: &[u8]) -> io::Result<Option<Self>> {
        let mut fields = [httparse::EMPTY_HEADER; MOST_FIELDS];
        let mut head = Response::new(&mut fields);
        let end = match head.parse(text) {
            Ok(Status::Complete(end)) => end,
            Ok(Status::Partial) if text.len() <= LONGEST => return Ok(None),
            Ok(Status::Partial) => return Err(wrong("an answer with a head of more than 1 MiB")),
            Err(error) => return Err(wrong(&format!("not an HTTP answer: {error}"))),
        };
        let status = head.code.unwrap_or_default();
        let body = text[end..].get(..body_bytes(head.headers)?);
        Ok(body.map(|body| Self { status, body: String::from_utf8_lossy(body).into_owned() }))
    }
}

/// Returns the length of the body. Without a length there is no body: the VMMs keep the connection
/// open, so its end cannot mark the end of the body.
fn body_bytes(fields: &[Header<'_>]) -> io::Result<usize> {
    let value = |name| fields.iter().find(|field| field.name.eq_ignore_ascii_case(name));
    if let Some(field) = value("transfer-encoding") {
        let encoding = String::from_utf8_lossy(field.value);
        return Err(wrong(&format!("an answer in the encoding {encoding:?}")));
    }
    let Some(field) = value("content-length") else { return Ok(0) };
    let length = String::from_utf8_lossy(field.value);
    match length.parse() {
        Ok(bytes) if bytes <= LONGEST => Ok(bytes),
        Ok(bytes) => Err(wrong(&format!("an answer of {bytes} bytes: at most 1 MiB is read"))),
        Err(_) => Err(wrong(&format!("an answer whose length is {length:?}"))),
    }
}

fn wrong(words: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, words)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &[u8]) -> Option<(u16, String)> {
        Answer::parse(text).unwrap().map(|answer| (answer.status, answer.body))
    }

    #[test]
    fn answer_is_its_status_and_body_when_all_has_come() {
        let text = b"HTTP/1.1 400 \r\ncontent-length: 5\r\n\r\nwrong and more";
        assert_eq!(parsed(text), Some((400, "wrong".to_owned())));
        for cut in 0..text.len() - " and more".len() {
            assert_eq!(parsed(&text[..cut]), None, "{cut}");
        }
        let empty = b"HTTP/1.1 204 \r\nServer: x\r\n\r\n";
        assert_eq!(parsed(empty), Some((204, String::new())));
        assert!(!Answer::parse(text).unwrap().unwrap().is_success());
        assert!(Answer::parse(empty).unwrap().unwrap().is_success());
    }

    #[test]
    fn wrong_answers_are_refused_with_the_reason() {
        let of_head = |fields: &str| format!("HTTP/1.1 200 OK\r\n{fields}\r\n\r\n");
        for (text, reason) in [
            ("nonsense\r\n\r\n".to_owned(), "not an HTTP answer"),
            (of_head("Content-Length: -1"), "\"-1\""),
            (of_head("Content-Length: 1048577"), "1048577 bytes"),
            (of_head("Content-Length: 99999999999999999999"), "99999999999999999999"),
            (of_head("Transfer-Encoding: chunked"), "\"chunked\""),
            (of_head(&"A: b\r\n".repeat(MOST_FIELDS + 1)), "not an HTTP answer"),
            (format!("HTTP/1.1 200 OK\r\nA: {}", "b".repeat(LONGEST)), "more than 1 MiB"),
        ] {
            let refused = Answer::parse(text.as_bytes()).unwrap_err().to_string();
            assert!(refused.contains(reason), "{refused}");
        }
    }
}
