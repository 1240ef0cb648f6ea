//! A reader of a delta, which trusts no byte of the delta.

use std::io::{self, Read};

use twox_hash::XxHash3_64;

use crate::error::DeltaError;
use crate::format::{LONGEST, MAGIC, Opening, PieceHeader, PieceKind, StateId, Sums, VERSION};

/// The header of a delta.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Bytes of a state of the delta.
    pub length: u64,
    /// The state at which the delta begins. `None` for a full delta, which begins with zeroes.
    pub base: Option<StateId>,
}

impl Header {
    /// Checks that such a delta may be applied to a state of `length` bytes, for a program that reads changes where they
    /// are instead of applying them.
    ///
    /// # Errors
    /// It is of states of another length, or begins with another state than `current`.
    pub fn check_applies_to(
        &self,
        length: u64,
        current: Option<StateId>,
    ) -> Result<(), DeltaError> {
        if self.length != length {
            return Err(DeltaError::OtherLength { delta: self.length, state: length });
        }
        match self.base {
            Some(expected) if current != Some(expected) => {
                Err(DeltaError::OtherBase { expected, found: current })
            }
            _ => Ok(()),
        }
    }
}

/// A change of a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change<'a> {
    /// New bytes at `offset`.
    Bytes {
        /// The offset from the start of the state, in bytes.
        offset: u64,
        /// The bytes, at least one.
        bytes: &'a [u8],
    },
    /// Zeroes at `offset`.
    Zeroes {
        /// The offset from the start of the state, in bytes.
        offset: u64,
        /// The number of bytes, at least one.
        len: u64,
    },
}

impl Change<'_> {
    /// Returns the offset of the change in the state.
    #[must_use]
    pub fn offset(&self) -> u64 {
        match *self {
            Self::Bytes { offset, .. } | Self::Zeroes { offset, .. } => offset,
        }
    }

    /// Returns the length of the change in bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "no change is empty")]
    pub fn len(&self) -> u64 {
        match *self {
            Self::Bytes { bytes, .. } => bytes.len() as u64,
            Self::Zeroes { len, .. } => len,
        }
    }
}

/// A reader of a delta, change by change. Each change is checked before it is returned. Only the
/// success of [`finish`](Self::finish) proves that there were no more changes.
pub struct Reader<R> {
    from: R,
    header: Header,
    sums: Sums,
    /// The lowest offset that the next change may have.
    next: u64,
    pieces: u64,
    /// The number of bytes that were read.
    at: u64,
    payload: Vec<u8>,
    end: Option<StateId>,
}

impl<R> std::fmt::Debug for Reader<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reader").field("header", &self.header).field("at", &self.at).finish()
    }
}

impl<R: Read> Reader<R> {
    /// Reads the header of a delta.
    ///
    /// # Errors
    /// [`DeltaError`] if the bytes are not a delta, or if the delta cannot be read.
    pub fn new(mut from: R) -> Result<Self, DeltaError> {
        let mut at = 0;
        let mut magic = [0; MAGIC.len()];
        match fill(&mut from, &mut magic, &mut at) {
            Err(DeltaError::Truncated { .. }) => return Err(DeltaError::NoDelta),
            read => read?,
        }
        if magic != MAGIC {
            return Err(DeltaError::NoDelta);
        }
        let mut opening = [0; Opening::BYTES];
        opening[..MAGIC.len()].copy_from_slice(&magic);
        fill(&mut from, &mut opening[MAGIC.len()..], &mut at)?;
        let header = header(&opening)?;
        let sums = Sums::new(&opening);
        Ok(Self { from, header, sums, next: 0, pieces: 0, at, payload: Vec::new(), end: None })
    }

    /// Returns the header.
    #[must_use]
    pub fn header(&self) -> Header {
        self.header
    }

    /// Returns the number of bytes that were read so far.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.at
    }

    /// Returns the next change; `None` after the last change.
    ///
    /// # Errors
    /// [`DeltaError`] if the delta is damaged or truncated, with the offset, or if it cannot be
    /// read.
    #[expect(clippy::should_implement_trait, reason = "it lends what it has read")]
    pub fn next(&mut self) -> Result<Option<Change<'_>>, DeltaError> {
        if self.end.is_some() {
            return Ok(None);
        }
        let start = self.at;
        let piece = self.piece(start)?;
        let offset = piece.offset;
        Ok(match piece.kind {
            PieceKind::End => None,
            PieceKind::Bytes => Some(Change::Bytes { offset, bytes: &self.payload }),
            PieceKind::Zeroes => Some(Change::Zeroes { offset, len: piece.len }),
        })
    }

    /// Returns the state at which the delta ends. Reads all changes that were not read yet.
    ///
    /// # Errors
    /// The errors of [`next`](Self::next).
    pub fn finish(mut self) -> Result<StateId, DeltaError> {
        loop {
            self.next()?;
            if let Some(end) = self.end {
                return Ok(end);
            }
        }
    }

    pub(crate) fn final_state(&self) -> Option<StateId> {
        self.end
    }

    /// Returns a piece with its payload, checked.
    fn piece(&mut self, start: u64) -> Result<PieceHeader, DeltaError> {
        let mut head = [0; PieceHeader::BYTES];
        fill(&mut self.from, &mut head, &mut self.at)?;
        let mut sum = [0; size_of::<u64>()];
        fill(&mut self.from, &mut sum, &mut self.at)?;
        let damaged = |what| DeltaError::Damaged { at: start, what };
        let piece = piece(&head).ok_or_else(|| damaged("no such kind of piece"))?;
        let payload = match piece.kind {
            PieceKind::Bytes if piece.len > LONGEST as u64 => {
                return Err(damaged("a piece that is too long"));
            }
            PieceKind::Bytes => piece.len as usize,
            PieceKind::Zeroes => 0,
            PieceKind::End => size_of::<StateId>(),
        };
        self.payload.resize(payload, 0);
        fill(&mut self.from, &mut self.payload, &mut self.at)?;
        if self.sums.next(&head, &self.payload) != u64::from_le_bytes(sum) {
            return Err(damaged("its checksum is another one"));
        }
        self.place(piece).ok_or_else(|| damaged("a piece out of order, or beyond the state"))?;
        Ok(piece)
    }

    /// Checks that the piece may come here; `None` if it may not.
    fn place(&mut self, piece: PieceHeader) -> Option<()> {
        if piece.kind == PieceKind::End {
            let id = StateId(self.payload.as_slice().try_into().ok()?);
            let is_all = piece.offset == self.pieces && piece.len == 0 && id != StateId::NONE;
            self.end = is_all.then_some(id);
            return self.end.map(|_| ());
        }
        let end = piece.offset.checked_add(piece.len)?;
        let fits = piece.len > 0 && piece.offset >= self.next && end <= self.header.length;
        self.next = fits.then_some(end)?;
        self.pieces += 1;
        Some(())
    }
}

fn header(bytes: &[u8; Opening::BYTES]) -> Result<Header, DeltaError> {
    let version = u32::from_le_bytes(bytes_at(bytes, 8));
    if version > VERSION {
        return Err(DeltaError::Newer { found: version, known: VERSION });
    }
    let damaged = |what| DeltaError::Damaged { at: 0, what };
    if XxHash3_64::oneshot(&bytes[..40]) != u64::from_le_bytes(bytes_at(bytes, 40)) {
        return Err(damaged("the checksum of its beginning is another one"));
    }
    let opening = Opening {
        length: u64::from_le_bytes(bytes_at(bytes, 16)),
        base: StateId(bytes_at(bytes, 24)),
    };
    if opening.encode() != *bytes {
        return Err(damaged("its beginning has what no version writes"));
    }
    let base = (opening.base != StateId::NONE).then_some(opening.base);
    Ok(Header { length: opening.length, base })
}

/// `None` for a kind or a filling that no version writes.
fn piece(bytes: &[u8; PieceHeader::BYTES]) -> Option<PieceHeader> {
    let piece = PieceHeader {
        kind: PieceKind::of(u32::from_le_bytes(bytes_at(bytes, 0)))?,
        offset: u64::from_le_bytes(bytes_at(bytes, 8)),
        len: u64::from_le_bytes(bytes_at(bytes, 16)),
    };
    (piece.encode() == *bytes).then_some(piece)
}

fn bytes_at<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().expect("a part of that length")
}

/// Reads as many bytes as there is room for, and counts them.
fn fill(from: &mut impl Read, mut to: &mut [u8], at: &mut u64) -> Result<(), DeltaError> {
    while !to.is_empty() {
        match from.read(to) {
            Ok(0) => return Err(DeltaError::Truncated { at: *at }),
            Ok(count) => {
                *at += count as u64;
                to = &mut to[count..];
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
