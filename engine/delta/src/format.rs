//! The bytes of a delta. All numbers are little-endian. `docs/delta.md` describes the format.

use std::fmt;
use std::hash::Hasher;
use std::io;
use std::str::FromStr;

use twox_hash::XxHash3_64;

pub(crate) const MAGIC: [u8; 8] = *b"HKDELTA\0";
pub(crate) const VERSION: u32 = 1;

/// The highest length of one change in bytes. A reader needs no more memory than this.
pub const LONGEST: usize = 2 << 20;

/// The ID of a state of a chain. Two states with the same ID have the same bytes. Each save gives
/// its state a new ID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StateId(pub(crate) [u8; 16]);

impl StateId {
    /// The state before a full delta.
    pub(crate) const NONE: Self = Self([0; 16]);

    /// Returns the ID as bytes, for storage outside of a delta.
    #[must_use]
    pub fn to_bytes(self) -> [u8; 16] {
        self.0
    }

    /// Converts the bytes of [`to_bytes`](Self::to_bytes) back to the ID.
    ///
    /// # Errors
    /// [`NoStateId`] if all bytes are zero.
    pub fn from_bytes(bytes: [u8; 16]) -> Result<Self, NoStateId> {
        let id = Self(bytes);
        if id == Self::NONE { Err(NoStateId) } else { Ok(id) }
    }
}

impl fmt::Display for StateId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// The error of a text or bytes that are not a [`StateId`]: 32 hexadecimal digits, or 16 bytes, not all of them zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a state is 32 hexadecimal digits, not all of them zero")]
pub struct NoStateId;

impl FromStr for StateId {
    type Err = NoStateId;

    fn from_str(text: &str) -> Result<Self, NoStateId> {
        let is_hexadecimal = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let number = u128::from_str_radix(text, 16).ok().filter(|_| is_hexadecimal);
        let id = number.map(|number| Self(number.to_be_bytes())).ok_or(NoStateId)?;
        if id == Self::NONE { Err(NoStateId) } else { Ok(id) }
    }
}

/// The first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Opening {
    pub(crate) length: u64,
    pub(crate) base: StateId,
}

impl Opening {
    pub(crate) const BYTES: usize = 48;

    pub(crate) fn encode(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.length.to_le_bytes());
        bytes[24..40].copy_from_slice(&self.base.0);
        let sum = XxHash3_64::oneshot(&bytes[..40]);
        bytes[40..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }
}

/// The kind of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PieceKind {
    /// The end of the changes. `offset` is the number of changes.
    End,
    /// A change whose bytes follow.
    Bytes,
    /// A change that makes this many bytes zero.
    Zeroes,
}

impl PieceKind {
    const fn number(self) -> u32 {
        match self {
            Self::End => 0,
            Self::Bytes => 1,
            Self::Zeroes => 2,
        }
    }

    pub(crate) const fn of(number: u32) -> Option<Self> {
        match number {
            0 => Some(Self::End),
            1 => Some(Self::Bytes),
            2 => Some(Self::Zeroes),
            _ => None,
        }
    }
}

/// The header of a piece, which is before its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PieceHeader {
    pub(crate) kind: PieceKind,
    pub(crate) offset: u64,
    /// The length. A piece of zeroes may be longer than [`LONGEST`].
    pub(crate) len: u64,
}

impl PieceHeader {
    /// Without the checksum.
    pub(crate) const BYTES: usize = 24;

    pub(crate) fn encode(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..4].copy_from_slice(&self.kind.number().to_le_bytes());
        bytes[8..16].copy_from_slice(&self.offset.to_le_bytes());
        bytes[16..].copy_from_slice(&self.len.to_le_bytes());
        bytes
    }
}

/// The sum of a piece follows on all pieces before it, so that none can be left out or change places.
#[derive(Clone)]
pub(crate) struct Sums {
    last: u64,
}

impl Sums {
    pub(crate) fn new(opening: &[u8; Opening::BYTES]) -> Self {
        Self { last: XxHash3_64::oneshot(opening) }
    }

    /// Returns the sum of the next piece.
    pub(crate) fn next(&mut self, piece: &[u8], payload: &[u8]) -> u64 {
        let mut sum = XxHash3_64::new();
        sum.write(&self.last.to_le_bytes());
        sum.write(piece);
        sum.write(payload);
        self.last = sum.finish();
        self.last
    }
}

/// Names a state. Sums are easily made equal by choosing bytes, so that a key is in it that no client can foresee; and the
/// sums are, so that two copies of one virtual machine, which may be given the same key, name their states differently.
#[derive(Clone)]
pub(crate) struct Namer(blake3::Hasher);

impl Namer {
    pub(crate) fn new(opening: &[u8; Opening::BYTES]) -> io::Result<Self> {
        let mut hasher = blake3::Hasher::new_keyed(&random()?);
        hasher.update(opening);
        Ok(Self(hasher))
    }

    pub(crate) fn add(&mut self, sum: u64) {
        self.0.update(&sum.to_le_bytes());
    }

    pub(crate) fn id(&self) -> StateId {
        StateId(*self.0.finalize().as_bytes().first_chunk().expect("a part of the hash"))
    }
}

/// Returns the number of bytes that no client can foresee.
pub(crate) fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes)?;
    Ok(bytes)
}
