//! What deltas are applied to.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Bytes of a state that can be changed: memory, or a file of that length.
pub trait Target {
    /// How many there are.
    ///
    /// # Errors
    /// They cannot be counted.
    fn length(&self) -> io::Result<u64>;

    /// Puts bytes there, within the length.
    ///
    /// # Errors
    /// They cannot be written.
    fn put(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Makes bytes zero, within the length.
    ///
    /// # Errors
    /// They cannot be written.
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

    fn clear(&mut self, offset: u64, len: u64) -> io::Result<()> {
        self[offset as usize..(offset + len) as usize].fill(0);
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

    fn clear(&mut self, offset: u64, len: u64) -> io::Result<()> {
        let end = offset + len;
        let mut at = offset;
        while at < end {
            let part = ZEROES.len().min((end - at) as usize);
            self.write_all_at(&ZEROES[..part], at)?;
            at += part as u64;
        }
        Ok(())
    }
}
