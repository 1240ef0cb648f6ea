//! The methods: orders of copying, and the routines that they copy by.

use hugekit::CopyOptions;
use hugekit_bulk::arch::{CopyRoutine, Kind, Unfenced, copy_routine, copy_routines};
use hugekit_bulk::sweep::{Order, Reach, SUBPAGE_BYTES};

use super::FOLIO;
use crate::experiments::clear::PUBLISHED_NEAR_BYTES;

/// Page by page, ascending: what the published work started from.
pub(super) const SEQUENTIAL: &str = "sequential";
/// Page by page, the farthest from the target first: the published order.
pub(super) const CONVERGING: &str = "converging";
/// Left of the target's neighbourhood, right of it, and that last.
pub(super) const SECTIONED: &str = "sectioned";
/// The same, where all but the neighbourhood streams past the cache: what its reviewers asked for.
pub(super) const STREAMED_FAR: &str = "streamed-far";

/// The routines of all methods: a string instruction, and what streams.
#[derive(Clone, Copy, Debug)]
pub(super) struct Copier {
    pub(super) string: &'static CopyRoutine,
    pub(super) streaming: Option<&'static CopyRoutine>,
}

impl Copier {
    /// Streams with the engine's choice for cold memory if that routine streams, else with the first routine that does.
    pub(super) fn new() -> Self {
        let chosen = CopyOptions::new().reuse(hugekit::Reuse::None).chosen_for(FOLIO).routine;
        let streams =
            |routine: &&CopyRoutine| routine.kind() == Kind::Streaming && routine.is_available();
        let mut streaming = copy_routines().iter().filter(streams);
        let chosen = streaming.clone().find(|routine| routine.name() == chosen);
        let string = copy_routine("rep_movsb").unwrap_or(&copy_routines()[0]);
        Self { string, streaming: chosen.or_else(|| streaming.next()) }
    }

    /// The methods that this CPU has.
    pub(super) fn methods(self) -> impl Iterator<Item = &'static str> {
        let streamed = self.streaming.map(|_| STREAMED_FAR);
        [SEQUENTIAL, CONVERGING, SECTIONED].into_iter().chain(streamed)
    }

    pub(super) fn copy(self, method: &str, dst: &mut [u8], src: &[u8], target: usize) {
        let far = self.streaming.filter(|_| method == STREAMED_FAR).unwrap_or(self.string);
        let mut unfenced = Unfenced::nothing();
        if method == SEQUENTIAL {
            for (dst, src) in dst.chunks_mut(SUBPAGE_BYTES).zip(src.chunks(SUBPAGE_BYTES)) {
                unfenced = unfenced.and(run(self.string, dst, src));
            }
            return unfenced.publish();
        }
        let order = if method == CONVERGING { Order::Converging } else { Order::Sectioned };
        for extent in order.extents(dst.len(), Some(target), PUBLISHED_NEAR_BYTES) {
            let routine = if extent.reach == Reach::Near { self.string } else { far };
            let (dst, src) = (&mut dst[extent.bytes.clone()], &src[extent.bytes]);
            unfenced = unfenced.and(run(routine, dst, src));
        }
        unfenced.publish();
    }
}

#[allow(unsafe_code)]
fn run(routine: &CopyRoutine, dst: &mut [u8], src: &[u8]) -> Unfenced {
    assert_eq!(dst.len(), src.len());
    // SAFETY: two slices of one length, one of them borrowed mutably; `Copier` has available routines only.
    unsafe { routine.run(dst.as_mut_ptr(), src.as_ptr(), dst.len()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_method_copies_all_of_the_page_wherever_the_target_is() {
        let copier = Copier::new();
        let source: Vec<u8> = (0..FOLIO).map(|at| (at % 251) as u8 + 1).collect();
        for method in copier.methods() {
            for target in [0, 5 * SUBPAGE_BYTES, FOLIO - 1] {
                let mut copy = vec![0; FOLIO];
                copier.copy(method, &mut copy, &source, target);
                assert!(copy == source, "{method} {target}");
            }
        }
    }
}
