//! Names of blobs: the SHA-256 of their bytes.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// Bytes that are read and hashed together.
const TOGETHER: usize = 1 << 20;

/// The name of a blob. A registry and a layout name blobs by it, and no two blobs have the same.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Digest([u8; 32]);

impl Digest {
    /// The digest of these bytes.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// Reads all of a file from its beginning; its position does not matter and stays.
    pub(crate) fn of_file(file: &File) -> io::Result<Self> {
        let (mut hasher, mut at, mut buffer) = (Hasher::default(), 0, vec![0; TOGETHER]);
        loop {
            match file.read_at(&mut buffer, at) {
                Ok(0) => return Ok(hasher.finish()),
                Ok(count) => {
                    hasher.update(&buffer[..count]);
                    at += count as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// The name of the blob's file: 64 hexadecimal digits.
    #[must_use]
    pub fn file_name(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", self.file_name())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> Self {
        digest.to_string()
    }
}

/// The error of a text that names no blob. A path is none, so no digest leads out of a layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a digest is \"sha256:\" and 64 lower-case hexadecimal digits")]
pub struct NoDigest;

impl FromStr for Digest {
    type Err = NoDigest;

    fn from_str(text: &str) -> Result<Self, NoDigest> {
        let digits = text.strip_prefix("sha256:").ok_or(NoDigest)?.as_bytes();
        let value = |digit: u8| match digit {
            b'0'..=b'9' => Ok(digit - b'0'),
            b'a'..=b'f' => Ok(digit - b'a' + 10),
            _ => Err(NoDigest),
        };
        let mut bytes = [0; 32];
        if digits.len() != 2 * bytes.len() {
            return Err(NoDigest);
        }
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks(2)) {
            *byte = value(pair[0])? << 4 | value(pair[1])?;
        }
        Ok(Self(bytes))
    }
}

impl TryFrom<String> for Digest {
    type Error = NoDigest;

    fn try_from(text: String) -> Result<Self, NoDigest> {
        text.parse()
    }
}

/// Bytes of a blob as they pass.
#[derive(Clone, Default)]
pub(crate) struct Hasher {
    sums: Sha256,
    bytes: u64,
}

impl Hasher {
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.sums.update(bytes);
        self.bytes += bytes.len() as u64;
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn finish(self) -> Digest {
        Digest(self.sums.finalize().into())
    }
}

/// Hashes all that is read through it.
pub(crate) struct Hashed<R> {
    from: R,
    hasher: Hasher,
}

impl<R: Read> Hashed<R> {
    pub(crate) fn new(from: R) -> Self {
        Self { from, hasher: Hasher::default() }
    }

    /// The digest of all bytes that were read.
    pub(crate) fn finish(self) -> Digest {
        self.hasher.finish()
    }
}

impl<R: Read> Read for Hashed<R> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let count = self.from.read(to)?;
        self.hasher.update(&to[..count]);
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digest_is_the_published_one_and_survives_its_text() {
        let text = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(Digest::of(b"abc").to_string(), text);
        assert_eq!(text.parse(), Ok(Digest::of(b"abc")));
    }

    #[test]
    fn texts_that_are_no_digest_are_refused() {
        let digits = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        for text in [
            "".to_owned(),
            digits.to_owned(),
            format!("sha512:{digits}"),
            format!("sha256:{}", digits.to_uppercase()),
            format!("sha256:{}", &digits[1..]),
            format!("sha256:{digits}0"),
            format!("sha256:../../../../etc/passwd{}", &digits[22..]),
            format!("sha256:é{}", &digits[2..]),
        ] {
            assert_eq!(text.parse::<Digest>(), Err(NoDigest), "{text}");
        }
    }
}
