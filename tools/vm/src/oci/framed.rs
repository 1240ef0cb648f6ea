//! Parts of a file that is stored in frames, read where they are.

use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use super::digest::Digest;
use super::error::OciError;
use super::frames::{CHUNK, Decoder, Frame, FrameTable};

/// Frames that are read ahead have at least this many bytes together, unless the blob ends before.
pub(crate) const TOGETHER: u64 = 1 << 20;

/// A file in frames. The table is in memory, so the bytes of each frame are checked whenever they are read.
#[derive(Debug)]
pub(crate) struct FramedFile {
    pub(crate) table: FrameTable,
    pub(crate) blob: File,
    pub(crate) path: PathBuf,
    pub(crate) digest: Digest,
}

/// The memory of one reader of one file: frames that it has read, and the last chunk that it has decompressed.
#[derive(Debug, Default)]
pub(crate) struct Window {
    /// Their place in the blob.
    place: Range<u64>,
    frames: Vec<u8>,
    chunk: Option<u64>,
    bytes: Vec<u8>,
}

impl FramedFile {
    /// Fills `to` with the bytes of the file from an offset on. Reads of the blob have at least `together` bytes.
    pub(crate) fn read(
        &self,
        window: &mut Window,
        decoder: &mut Decoder,
        together: u64,
        offset: u64,
        to: &mut [u8],
    ) -> Result<(), OciError> {
        let end = offset + to.len() as u64;
        let last = self.table.frame_of((end - 1) / CHUNK).map_or(0, Frame::end);
        let mut left = to;
        let mut at = offset;
        while at < end {
            let (chunk, from) = (at / CHUNK, (at % CHUNK) as usize);
            let len = (CHUNK as usize - from).min(left.len());
            let (part, rest) = left.split_at_mut(len);
            let frame = *self.table.frame_of(chunk).ok_or_else(|| self.lacks(chunk))?;
            if self.table.is_zero(&frame) {
                part.fill(0);
            } else if window.chunk == Some(chunk) {
                part.copy_from_slice(&window.bytes[from..from + len]);
            } else {
                let until = last.max(frame.start + together).min(self.table.size());
                self.fetch(window, &frame, until)?;
                let whole = self.table.chunk_bytes(chunk);
                if len == whole {
                    self.decode(window, decoder, &frame, Some(part))?;
                } else {
                    self.decode(window, decoder, &frame, None)?;
                    part.copy_from_slice(&window.bytes[from..from + len]);
                }
            }
            (at, left) = (at + len as u64, rest);
        }
        Ok(())
    }

    fn lacks(&self, chunk: u64) -> OciError {
        let why = format!("chunk {chunk} is not among its frames");
        OciError::Read { path: self.path.clone(), source: io::Error::other(why) }
    }

    /// Reads from a frame on up to `until`, if the window does not have the frame.
    fn fetch(&self, window: &mut Window, frame: &Frame, until: u64) -> Result<(), OciError> {
        let has = &window.place;
        if has.start <= frame.start && frame.end() <= has.end {
            return Ok(());
        }
        // Nothing of it is there if the read fails.
        window.place = 0..0;
        let place = frame.start..until.max(frame.end());
        window.frames.resize((place.end - place.start) as usize, 0);
        let read = self.blob.read_exact_at(&mut window.frames, place.start);
        read.map_err(|source| OciError::Read { path: self.path.clone(), source })?;
        window.place = place;
        Ok(())
    }

    /// Decompresses and checks a frame, to the window if not to `to`.
    fn decode(
        &self,
        window: &mut Window,
        decoder: &mut Decoder,
        frame: &Frame,
        to: Option<&mut [u8]>,
    ) -> Result<(), OciError> {
        let start = (frame.start - window.place.start) as usize;
        let compressed = &window.frames[start..start + (frame.end() - frame.start) as usize];
        let chunk = u64::from(frame.chunk);
        let is_kept = to.is_none();
        let bytes = to.unwrap_or_else(|| {
            window.chunk = None;
            window.bytes.resize(self.table.chunk_bytes(chunk), 0);
            &mut window.bytes
        });
        let refused = |source| OciError::Frames { digest: self.digest, source };
        if !decoder.decode(compressed, bytes) {
            let (at, bytes) = (chunk * CHUNK, bytes.len());
            return Err(refused(super::frames::FrameError::Frame { at, bytes }));
        }
        self.table.check(frame, bytes).map_err(refused)?;
        if is_kept {
            window.chunk = Some(chunk);
        }
        Ok(())
    }

    /// Its bytes from the first to the last.
    pub(crate) fn stream(&self) -> io::Result<Stream<'_>> {
        Ok(Stream { file: self, window: Window::default(), decoder: Decoder::new()?, at: 0 })
    }
}

/// All bytes of a file in frames.
pub(crate) struct Stream<'a> {
    file: &'a FramedFile,
    window: Window,
    decoder: Decoder,
    at: u64,
}

impl Read for Stream<'_> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let left = self.file.table.length() - self.at;
        let count = left.min(to.len() as u64) as usize;
        if count > 0 {
            let read = self.file.read(
                &mut self.window,
                &mut self.decoder,
                TOGETHER,
                self.at,
                &mut to[..count],
            );
            read.map_err(io::Error::other)?;
            self.at += count as u64;
        }
        Ok(count)
    }
}
