//! Merge of several deltas to one.

use std::io::{Read, Write};

use crate::error::DeltaError;
use crate::format::StateId;
use crate::reader::{Change, Reader};
use crate::writer::Writer;

/// Writes one delta that begins where the first delta begins and ends where the last delta ends. If
/// several deltas change a byte, the last delta's byte counts. Each delta is read once and in
/// order, and at most one change of each delta is in memory. Deltas before a full delta do not
/// matter, and are not read.
///
/// # Errors
/// [`DeltaError`] if a delta is damaged, or does not begin with the state at which the previous
/// delta ends. The written bytes are then an incomplete delta, which every reader refuses.
pub fn merge<R: Read>(deltas: Vec<R>, to: impl Write) -> Result<StateId, DeltaError> {
    let mut sources = Vec::new();
    for delta in deltas {
        let source = MergeSource::new(delta)?;
        if source.reader.header().base.is_none() {
            sources.clear();
        }
        sources.push(source);
    }
    let first = sources.first().ok_or(DeltaError::Nothing)?.reader.header();
    let mut out = Writer::new(to, first.length, first.base)?;
    for source in &sources {
        let delta = source.reader.header().length;
        if delta != first.length {
            return Err(DeltaError::OtherLength { delta, state: first.length });
        }
    }
    while overlay(&mut sources, &mut out)? {}
    out.finish_as(last_state(&sources)?)
}

/// Returns the state that the chain leads to, if it is a chain. All of it was read.
fn last_state<R: Read>(sources: &[MergeSource<R>]) -> Result<StateId, DeltaError> {
    let mut found = None;
    for source in sources {
        let base = source.reader.header().base;
        if let (Some(expected), Some(_)) = (base, found)
            && found != base
        {
            return Err(DeltaError::OtherBase { expected, found });
        }
        found = source.reader.final_state();
    }
    found.ok_or(DeltaError::Nothing)
}

/// Writes the next bytes that change, as the last delta has them; whether there were any.
fn overlay<R: Read, W: Write>(
    sources: &mut [MergeSource<R>],
    out: &mut Writer<W>,
) -> Result<bool, DeltaError> {
    let start_of = |source: &MergeSource<R>| source.pending.as_ref().map(|pending| pending.offset);
    let Some(start) = sources.iter().filter_map(start_of).min() else { return Ok(false) };
    let newest = sources.iter().rposition(|source| start_of(source) == Some(start));
    let newest = newest.expect("the one that begins first");
    let later = sources[newest + 1..].iter().filter_map(start_of).min().unwrap_or(u64::MAX);
    let pending = sources[newest].pending.as_ref().expect("it begins somewhere");
    let end = pending.end().min(later);
    pending.write(end, out)?;
    for source in sources {
        source.skip_to(end)?;
    }
    Ok(true)
}

/// A delta that is merged, and its next change.
struct MergeSource<R> {
    reader: Reader<R>,
    pending: Option<PendingChange>,
}

impl<R: Read> MergeSource<R> {
    fn new(delta: R) -> Result<Self, DeltaError> {
        let mut source = Self { reader: Reader::new(delta)?, pending: None };
        source.read()?;
        Ok(source)
    }

    fn read(&mut self) -> Result<(), DeltaError> {
        self.pending = self.reader.next()?.map(PendingChange::of);
        Ok(())
    }

    /// Leaves out what comes before.
    fn skip_to(&mut self, offset: u64) -> Result<(), DeltaError> {
        while let Some(pending) = &mut self.pending {
            if pending.end() > offset {
                pending.skip_to(offset);
                return Ok(());
            }
            self.read()?;
        }
        Ok(())
    }
}

/// A change that is not written yet, or the rest of one.
struct PendingChange {
    offset: u64,
    len: u64,
    /// All bytes of the change, of which the last ones remain. `None` for zeroes.
    bytes: Option<Vec<u8>>,
}

impl PendingChange {
    fn of(change: Change<'_>) -> Self {
        let bytes = match change {
            Change::Bytes { bytes, .. } => Some(bytes.to_vec()),
            Change::Zeroes { .. } => None,
        };
        Self { offset: change.offset(), len: change.len(), bytes }
    }

    fn end(&self) -> u64 {
        self.offset + self.len
    }

    fn skip_to(&mut self, offset: u64) {
        let skipped = offset.saturating_sub(self.offset);
        self.offset += skipped;
        self.len -= skipped;
    }

    fn write<W: Write>(&self, end: u64, out: &mut Writer<W>) -> Result<(), DeltaError> {
        let len = end - self.offset;
        match &self.bytes {
            Some(bytes) => {
                let left = &bytes[bytes.len() - self.len as usize..];
                out.bytes(self.offset, &left[..len as usize])
            }
            None => out.zeroes(self.offset, len),
        }
    }
}
