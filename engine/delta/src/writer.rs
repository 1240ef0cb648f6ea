//! A writer of a delta.

use std::io::{self, Write};

use crate::error::DeltaError;
use crate::format::{LONGEST, Namer, Opening, PieceHeader, PieceKind, StateId, Sums};

/// Bytes that are written together. A delta may have thousands of small changes. If 2 MiB are
/// written at once to a multiple of 2 MiB, the page cache holds them on one huge page.
const TOGETHER: usize = 2 << 20;

/// Bytes that are written by whole pieces: all but the last one begin and end at a multiple of [`TOGETHER`] from the
/// first byte on.
struct WholePieces<W: Write> {
    to: W,
    bytes: Vec<u8>,
}

impl<W: Write> WholePieces<W> {
    fn new(to: W) -> Self {
        Self { to, bytes: Vec::new() }
    }

    fn write_all(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min(TOGETHER - self.bytes.len()));
            self.bytes.extend_from_slice(now);
            bytes = later;
            if self.bytes.len() == TOGETHER {
                self.write_out()?;
            }
        }
        Ok(())
    }

    fn write_out(&mut self) -> io::Result<()> {
        self.to.write_all(&self.bytes)?;
        self.bytes.clear();
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.write_out()?;
        self.to.flush()
    }
}

/// A writer of a delta: changes in the order of their offsets, and then [`finish`](Self::finish). A
/// delta without `finish` is truncated, and readers refuse it.
pub struct Writer<W: Write> {
    to: WholePieces<W>,
    length: u64,
    sums: Sums,
    namer: Namer,
    /// The lowest offset that the next change may have.
    next: u64,
    pieces: u64,
    written: u64,
}

impl<W: Write> std::fmt::Debug for Writer<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writer").field("length", &self.length).field("next", &self.next).finish()
    }
}

impl<W: Write> Writer<W> {
    /// Bytes that [`finish`](Self::finish) writes.
    pub(crate) const END: u64 =
        (PieceHeader::BYTES + size_of::<u64>() + size_of::<StateId>()) as u64;
}

impl<W: Write> Writer<W> {
    /// Begins a delta of states of `length` bytes. The delta begins with the state `base`, or with
    /// zeroes if `base` is `None`.
    ///
    /// # Errors
    /// [`DeltaError`] if the file returns an error, or if the kernel provides no random bytes.
    pub fn new(to: W, length: u64, base: Option<StateId>) -> Result<Self, DeltaError> {
        let mut to = WholePieces::new(to);
        let opening = Opening { length, base: base.unwrap_or(StateId::NONE) }.encode();
        to.write_all(&opening)?;
        let (sums, namer) = (Sums::new(&opening), Namer::new(&opening)?);
        let written = opening.len() as u64;
        Ok(Self { to, length, sums, namer, next: 0, pieces: 0, written })
    }

    /// Adds a change: new bytes at `offset`.
    ///
    /// # Errors
    /// [`DeltaError::OutOfOrder`], or an error of the file.
    pub fn bytes(&mut self, offset: u64, bytes: &[u8]) -> Result<(), DeltaError> {
        let len = bytes.len() as u64;
        self.advance(offset, len)?;
        for (index, part) in bytes.chunks(LONGEST).enumerate() {
            let offset = offset + (index * LONGEST) as u64;
            self.piece(
                PieceHeader { kind: PieceKind::Bytes, offset, len: part.len() as u64 },
                part,
            )?;
        }
        Ok(())
    }

    /// Adds a change: `len` zero bytes at `offset`.
    ///
    /// # Errors
    /// [`DeltaError::OutOfOrder`], or an error of the file.
    pub fn zeroes(&mut self, offset: u64, len: u64) -> Result<(), DeltaError> {
        self.advance(offset, len)?;
        match len {
            0 => Ok(()),
            len => self.piece(PieceHeader { kind: PieceKind::Zeroes, offset, len }, &[]),
        }
    }

    /// Ends the delta after its last change, and returns its state.
    ///
    /// # Errors
    /// An error if the file returns one.
    pub fn finish(self) -> Result<StateId, DeltaError> {
        let id = self.namer.id();
        self.finish_as(id)
    }

    /// Like [`finish`](Self::finish): it leads to a state that is known by another delta.
    pub(crate) fn finish_as(mut self, id: StateId) -> Result<StateId, DeltaError> {
        let end = PieceHeader { kind: PieceKind::End, offset: self.pieces, len: 0 };
        self.piece(end, &id.0)?;
        self.to.flush()?;
        Ok(id)
    }

    /// Returns the number of bytes that were written until now.
    #[must_use]
    pub fn written(&self) -> u64 {
        self.written
    }

    fn advance(&mut self, offset: u64, len: u64) -> Result<(), DeltaError> {
        let end = offset.checked_add(len).filter(|&end| offset >= self.next && end <= self.length);
        let out_of_order =
            || DeltaError::OutOfOrder { offset, len, next: self.next, length: self.length };
        self.next = end.ok_or_else(out_of_order)?;
        Ok(())
    }

    fn piece(&mut self, piece: PieceHeader, payload: &[u8]) -> Result<(), DeltaError> {
        let head = piece.encode();
        let sum = self.sums.next(&head, payload);
        self.namer.add(sum);
        self.to.write_all(&head)?;
        self.to.write_all(&sum.to_le_bytes())?;
        self.to.write_all(payload)?;
        self.pieces += 1;
        self.written += (head.len() + size_of_val(&sum) + payload.len()) as u64;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lengths of the writes.
    #[derive(Default)]
    struct Lengths(Vec<usize>);

    impl Write for &mut Lengths {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.push(bytes.len());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn delta_is_written_by_aligned_pieces_of_2_mib() {
        let mut lengths = Lengths::default();
        let mut writer = Writer::new(&mut lengths, 16 << 20, None).unwrap();
        writer.bytes(5, &vec![7; 5 << 20]).unwrap();
        (0..100).for_each(|index| writer.bytes((6 << 20) + index * 5000, &[1; 4096]).unwrap());
        writer.zeroes(7 << 20, 1 << 20).unwrap();
        writer.finish().unwrap();
        let (last, whole) = lengths.0.split_last().unwrap();
        assert_eq!(whole, [TOGETHER; 2]);
        assert!((1 << 20..TOGETHER).contains(last), "{last}");
    }
}
