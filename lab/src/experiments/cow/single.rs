//! The latency of one copy.

use std::time::Instant;

use crate::measure::LabError;
use crate::measure::latencies::{distribution, latencies, record};
use crate::measure::part::{Part, Rounds};
use crate::measure::workloads::busy::Busy;
use crate::measure::workloads::forking::write_pages;
use crate::record::Unit;
use crate::record::stats::median;
use hugekit::Pool;
use hugekit::pool::Backing;
use hugekit_machine::size::{KIB, Size};

use super::HUGE;
use super::origin::{CowOrigin, fork};

/// The writer of shared memory, one word of each page or granule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WritingSide {
    Kernel,
    Parent,
    Child,
}

impl WritingSide {
    const fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel-hugetlb",
            Self::Parent => "parent-write",
            Self::Child => "child-write",
        }
    }

    /// The bytes that are copied at a time, and when.
    fn label(self, busy: bool, granule: usize) -> String {
        let page = if self == Self::Kernel { HUGE } else { granule };
        format!("{}{}", Size(page), if busy { "-busy" } else { "" })
    }
}

/// The latency of one copy, in rows: the kernel's of a hugetlb page, ours of a granule; while the other CPUs are
/// idle, and while another thread runs.
pub(super) fn measure(
    origins: &mut [CowOrigin],
    pool: &Pool,
    rounds: Rounds<'_>,
) -> Result<Part, LabError> {
    rounds.observer.begin("cow one copy");
    let granule = pool.page_size().max(64 * KIB);
    let kernel = origins.iter().any(CowOrigin::is_kernels_huge).then_some(WritingSide::Kernel);
    let writers = kernel.into_iter().chain([WritingSide::Parent, WritingSide::Child]);
    let looks: Vec<(WritingSide, bool)> =
        writers.flat_map(|writer| [(writer, false), (writer, true)]).collect();
    let name = |&(writer, busy): &(WritingSide, bool)| {
        format!("{}/{}", writer.name(), writer.label(busy, granule))
    };
    let names: Vec<_> = looks.iter().map(name).collect();
    let mut recorded: Vec<_> = looks.iter().map(|_| latencies(3)).collect();
    let mut part = rounds.measure("cow", Unit::Microseconds, &names, |index| {
        let row = look(origins, looks[index], granule)?;
        record(&mut recorded[index], &row);
        Ok(median(&row))
    })?;
    for (name, recorded) in names.iter().zip(&recorded) {
        let case = part.case(name).map(|case| distribution(&case.id, recorded));
        part.distributions.extend(case);
    }
    // Where both copy huge pages.
    let other_pages = "the region is on transparent huge pages, the kernel's on reserved ones";
    let moved = (pool.backing() != Backing::Hugetlb2M).then_some(other_pages);
    for &(writer, busy) in looks.iter().filter(|(writer, _)| *writer != WritingSide::Kernel) {
        let sides = (WritingSide::Kernel.name(), writer.name());
        part.compare(sides, &writer.label(busy, granule), moved);
    }
    Ok(part)
}

/// The time that one row of copies takes, after the origin has written everything.
fn look(
    origins: &mut [CowOrigin],
    (writer, busy): (WritingSide, bool),
    granule: usize,
) -> Result<Vec<f64>, LabError> {
    let wanted = |origin: &&mut CowOrigin| match writer {
        WritingSide::Kernel => origin.is_kernels_huge(),
        WritingSide::Parent | WritingSide::Child => matches!(origin, CowOrigin::Region(_)),
    };
    let origin = origins.iter_mut().find(wanted).expect("one of each is there");
    write_pages(origin.bytes());
    match origin {
        CowOrigin::Process(_, shared) => {
            let _child = shared.sleeping_child()?;
            let _busy = busy.then(Busy::new).transpose()?;
            Ok(row(shared.bytes(), HUGE))
        }
        CowOrigin::Region(region) => {
            let mut fork = fork(region)?;
            let _busy = busy.then(Busy::new).transpose()?;
            Ok(row(if writer == WritingSide::Parent { region } else { &mut fork }, granule))
        }
    }
}

/// Microseconds of the first store to each piece, not always to the same place in it.
fn row(bytes: &mut [u8], piece: usize) -> Vec<f64> {
    let pages = piece / rustix::param::page_size();
    let pieces = bytes.chunks_mut(piece).enumerate();
    pieces
        .map(|(index, piece)| {
            let at = index * 37 % pages * rustix::param::page_size();
            let start = Instant::now();
            piece[at.min(piece.len() - 1)] = 1;
            std::hint::black_box(&mut *piece);
            start.elapsed().as_secs_f64() * 1e6
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use hugekit_machine::size::MIB;

    #[test]
    fn a_row_touches_every_piece_once() {
        let mut bytes = vec![0; MIB];
        assert_eq!(row(&mut bytes, 64 * KIB).len(), 16);
        assert_eq!(bytes.iter().filter(|&&byte| byte == 1).count(), 16);
        assert!(bytes.chunks(64 * KIB).all(|piece| piece.contains(&1)));
    }
}
