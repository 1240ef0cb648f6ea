//! Targets of deltas.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use rustix::fs::{FallocateFlags, SeekFrom, fallocate, seek};
use rustix::io::{Errno, retry_on_intr};

use crate::blocks::{BLOCK, is_zero};

/// Bytes of a state that can be changed: memory, or a file of the same length, in which zeroes
/// become holes.
pub trait Target {
    /// Returns the length of the state in bytes.
    ///
    /// # Errors
    /// An error if the length cannot be read.
    fn length(&self) -> io::Result<u64>;

    /// Replaces bytes at `offset`, within the length.
    ///
    /// # Errors
    /// An error if the bytes cannot be written.
    fn put(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Makes `len` bytes at `offset` zero, within the length.
    ///
    /// # Errors
    /// An error if the bytes cannot be written.
    fn clear(&mut self, offset: u64, len: u64) -> io::Result<()>;
}

impl Target for [u8] {
    fn length(&self) -> io::Result<u64> {
        Ok(self.len() as u64)
    }

    fn put(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let start = offset as usize;
        self[start..start + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    /// Writes nothing where there are zeroes already: memory that was never touched is not populated.
    fn clear(&mut self, offset: u64, len: u64) -> io::Result<()> {
        let bytes = &mut self[offset as usize..(offset + len) as usize];
        bytes.chunks_mut(BLOCK).filter(|block| !is_zero(block)).for_each(|block| block.fill(0));
        Ok(())
    }
}

impl Target for Vec<u8> {
    fn length(&self) -> io::Result<u64> {
        self.as_slice().length()
    }

    fn put(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.as_mut_slice().put(offset, bytes)
    }

    fn clear(&mut self, offset: u64, len: u64) -> io::Result<()> {
        self.as_mut_slice().clear(offset, len)
    }
}

/// Zeroes that are written to a file together.
static ZEROES: [u8; 64 << 10] = [0; 64 << 10];

impl Target for File {
    fn length(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn put(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.write_all_at(bytes, offset)
    }

    /// Leaves a hole, which takes no room on the disk.
    fn clear(&mut self, offset: u64, len: u64) -> io::Result<()> {
        if len == 0 {
            return Ok(());
        }
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match retry_on_intr(|| fallocate(&*self, flags, offset, len)) {
            Err(Errno::NOTSUP | Errno::NOSYS) => overwrite(self, offset..offset + len),
            punched => Ok(punched?),
        }
    }
}

/// Overwrites with zeroes; not where holes are already, as far as the file system knows.
fn overwrite(file: &File, range: Range<u64>) -> io::Result<()> {
    let mut at = range.start;
    while at < range.end {
        let data = match seek(file, SeekFrom::Data(at)) {
            Err(Errno::NXIO) => return Ok(()),
            found => found.unwrap_or(at).min(range.end),
        };
        let hole = seek(file, SeekFrom::Hole(data)).unwrap_or(range.end).min(range.end);
        for start in (data..hole).step_by(ZEROES.len()) {
            let len = ZEROES.len().min((hole - start) as usize);
            file.write_all_at(&ZEROES[..len], start)?;
        }
        at = hole.max(at + 1);
    }
    Ok(())
}
