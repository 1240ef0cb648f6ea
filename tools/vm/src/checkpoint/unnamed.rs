//! Files in memory that Firecracker writes while the VM is paused: Firecracker also syncs them then.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{MemfdFlags, memfd_create};

use crate::checkpoint::error::CheckpointError;

/// Longer states are not Firecracker's.
const LONGEST: u64 = 256 << 20;

/// A file without a name, and the path by which the VMM opens it.
#[derive(Debug)]
pub(crate) struct Unnamed {
    file: File,
    path: PathBuf,
}

impl Unnamed {
    pub(crate) fn new() -> io::Result<Self> {
        let file = File::from(memfd_create(c"hugekit-checkpoint", MemfdFlags::CLOEXEC)?);
        let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()).into();
        Ok(Self { file, path })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Returns whether Firecracker has begun to write: then it has saved the state of all devices.
    pub(crate) fn is_begun(&self) -> bool {
        self.file.metadata().is_ok_and(|found| found.len() > 0)
    }

    pub(crate) fn clear(&self) -> io::Result<()> {
        self.file.set_len(0)
    }

    /// Writes to the empty file.
    pub(crate) fn write(&self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, 0)
    }

    /// All bytes, if they are the state of a VM as a whole: the last eight are the checksum of the others.
    pub(crate) fn whole_state(&self) -> Result<Vec<u8>, CheckpointError> {
        let len = self.file.metadata().map_or(0, |found| found.len());
        if len > LONGEST {
            return Err(CheckpointError::StateFile);
        }
        let mut bytes = vec![0; len as usize];
        self.file.read_exact_at(&mut bytes, 0).map_err(|_| CheckpointError::StateFile)?;
        match bytes.split_last_chunk() {
            Some((state, sum)) if !state.is_empty() && crc64(state) == u64::from_le_bytes(*sum) => {
                Ok(bytes)
            }
            _ => Err(CheckpointError::StateFile),
        }
    }
}

/// CRC-64 with the polynomial of Jones, reflected, as Firecracker computes it.
fn crc64(bytes: &[u8]) -> u64 {
    const POLYNOMIAL: u64 = 0x95ac_9329_ac4b_c9b5;
    const TABLE: [u64; 256] = {
        let mut table = [0; 256];
        let mut index = 0;
        while index < 256 {
            let (mut sum, mut bit) = (index as u64, 0);
            while bit < 8 {
                sum = if sum & 1 == 1 { sum >> 1 ^ POLYNOMIAL } else { sum >> 1 };
                bit += 1;
            }
            table[index] = sum;
            index += 1;
        }
        table
    };
    bytes.iter().fold(0, |sum, &byte| TABLE[(sum as u8 ^ byte) as usize] ^ sum >> 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksum_is_the_published_one() {
        assert_eq!(crc64(b"123456789"), 0xe9c6_d914_c4b8_d9ca);
    }

    #[test]
    fn state_is_whole_with_its_checksum_only() {
        let state = Unnamed::new().unwrap();
        assert!(state.whole_state().is_err() && !state.is_begun());
        let mut bytes = b"a state".to_vec();
        bytes.extend(crc64(b"a state").to_le_bytes());
        std::fs::write(state.path(), &bytes[..bytes.len() - 1]).unwrap();
        assert!(state.whole_state().is_err() && state.is_begun());
        std::fs::write(state.path(), &bytes).unwrap();
        assert_eq!(state.whole_state().unwrap(), bytes);
        state.clear().unwrap();
        assert!(state.whole_state().is_err());
    }
}
