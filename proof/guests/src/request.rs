//! What a guest is asked: one letter and three numbers. The answer is one number.

use crate::guest::WRITES;

/// Bytes of a request.
pub(crate) const BYTES: usize = 25;

/// A question about guest-physical memory. Ranges begin and end at multiples of 4 KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Answers 0.
    Reply,
    /// Reads one word of each page.
    Touch { start: u64, len: u64 },
    /// Reads one word of each page at once by the first two virtual CPUs, of which one ascends and
    /// one descends. The small VMM has two threads that ascend, and one that descends.
    TouchAtOnce { start: u64, len: u64 },
    /// Reads every word; answers [`sum_of_pattern`] if the range has the pattern.
    Sum { start: u64, len: u64 },
    /// Writes [`pattern_at`] to every word.
    Write { start: u64, len: u64, seed: u64 },
    /// Counts the words that differ from the pattern.
    Verify { start: u64, len: u64, seed: u64 },
    /// Counts the words that are not zero.
    NotZero { start: u64, len: u64 },
    /// Writes a word to each page of [`CLUSTER`] bytes, and of as many bytes at each distance of
    /// `every` bytes from there.
    Dirty { start: u64, len: u64, every: u64 },
    /// Answers 0, and then writes as [`Dirty`](Self::Dirty) again and again until the next request
    /// comes, which may be [`Request::writes`]. Only the tiny guest understands this.
    WriteUntilAsked { start: u64, len: u64, every: u64 },
    /// Gives the range back, as a balloon does. Only the small VMM understands it.
    Remove { start: u64, len: u64 },
    /// Gives the range to the balloon; answers 0, or -1 without one. Only the tiny guest
    /// understands this, for multiples of 8 KiB. Pages of 2 MiB are given back if both ends are
    /// multiples of that.
    Inflate { start: u64, len: u64 },
    /// Gets the range back from the balloon, as [`Inflate`](Self::Inflate).
    Deflate { start: u64, len: u64 },
    /// Offers 8 buffers for events to the vsock, once, and answers how many were used; -1 without a vsock. Only the
    /// tiny guest understands this.
    Events,
    /// Writes a word and zeroes to a sector of the disk, and answers with the word; -1 without a disk, or if the disk
    /// refuses. Only the tiny guest understands this.
    WriteSector { sector: u64, word: u64 },
    /// Answers with the first word of a sector of the disk, as [`WriteSector`](Self::WriteSector).
    ReadSector { sector: u64 },
}

/// Bytes that [`Request::Dirty`] writes to in one place.
pub const CLUSTER: u64 = 64 << 10;

/// The word at this guest-physical address.
#[must_use]
pub fn pattern_at(address: u64, seed: u64) -> u64 {
    address ^ seed
}

/// The answer to [`Request::Sum`] of a range that has the pattern.
#[must_use]
pub fn sum_of_pattern(start: u64, len: u64, seed: u64) -> u64 {
    (start..start + len)
        .step_by(8)
        .fold(0, |sum: u64, address| sum.rotate_left(1) ^ pattern_at(address, seed))
}

impl Request {
    /// Asks for three numbers of the last [`WriteUntilAsked`](Self::WriteUntilAsked): the longest time
    /// between two writes, how many there were, and the time from its start to the last one. Times
    /// are ticks of the TSC.
    #[must_use]
    pub fn writes() -> [Self; 3] {
        [WRITES, WRITES + 8, WRITES + 16].map(|start| Self::Sum { start, len: 8 })
    }

    pub(crate) fn to_bytes(self) -> [u8; BYTES] {
        let (letter, numbers) = match self {
            Self::Reply => (b'P', [0, 0, 0]),
            Self::Touch { start, len } => (b'T', [start, len, 0]),
            Self::TouchAtOnce { start, len } => (b'B', [start, len, 0]),
            Self::Sum { start, len } => (b'S', [start, len, 0]),
            Self::Write { start, len, seed } => (b'W', [start, len, seed]),
            Self::Verify { start, len, seed } => (b'V', [start, len, seed]),
            Self::NotZero { start, len } => (b'Z', [start, len, 0]),
            Self::Dirty { start, len, every } => (b'C', [start, len, every]),
            Self::WriteUntilAsked { start, len, every } => (b'L', [start, len, every]),
            Self::Remove { start, len } => (b'R', [start, len, 0]),
            Self::Inflate { start, len } => (b'I', [start, len, 0]),
            Self::Deflate { start, len } => (b'D', [start, len, 0]),
            Self::Events => (b'E', [0, 0, 0]),
            Self::ReadSector { sector } => (b'K', [sector, 0, 0]),
            Self::WriteSector { sector, word } => (b'K', [sector, 1, word]),
        };
        let mut bytes = [0; BYTES];
        bytes[0] = letter;
        for (to, number) in bytes[1..].chunks_exact_mut(8).zip(numbers) {
            to.copy_from_slice(&u64::to_le_bytes(number));
        }
        bytes
    }

    pub(crate) fn from_bytes(bytes: &[u8; BYTES]) -> Option<Self> {
        let number = |index: usize| {
            u64::from_le_bytes(bytes[1 + 8 * index..][..8].try_into().expect("eight bytes"))
        };
        let (start, len, seed) = (number(0), number(1), number(2));
        Some(match bytes[0] {
            b'P' => Self::Reply,
            b'T' => Self::Touch { start, len },
            b'B' => Self::TouchAtOnce { start, len },
            b'S' => Self::Sum { start, len },
            b'W' => Self::Write { start, len, seed },
            b'V' => Self::Verify { start, len, seed },
            b'Z' => Self::NotZero { start, len },
            b'C' => Self::Dirty { start, len, every: seed },
            b'L' => Self::WriteUntilAsked { start, len, every: seed },
            b'R' => Self::Remove { start, len },
            b'I' => Self::Inflate { start, len },
            b'D' => Self::Deflate { start, len },
            b'E' => Self::Events,
            b'K' if len == 0 => Self::ReadSector { sector: start },
            b'K' => Self::WriteSector { sector: start, word: seed },
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_survives_its_bytes() {
        let (start, len, seed) = (1 << 20, 1 << 21, 77);
        for request in [
            Request::Reply,
            Request::Touch { start, len },
            Request::TouchAtOnce { start, len },
            Request::Sum { start, len },
            Request::Write { start, len, seed },
            Request::Verify { start, len, seed },
            Request::NotZero { start, len },
            Request::Dirty { start, len, every: seed },
            Request::WriteUntilAsked { start, len, every: seed },
            Request::Remove { start, len },
            Request::Inflate { start, len },
            Request::Deflate { start, len },
            Request::Events,
            Request::ReadSector { sector: 7 },
            Request::WriteSector { sector: 7, word: seed },
        ] {
            assert_eq!(Request::from_bytes(&request.to_bytes()), Some(request));
        }
        assert_eq!(Request::from_bytes(&[0; BYTES]), None);
    }
}
