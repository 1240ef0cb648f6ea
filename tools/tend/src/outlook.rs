//! The effect of tending a process, without a change of the process.

use std::time::Instant;

use hugekit_machine::Root;

use crate::allocator::could_ask_for_huge_pages;
use crate::error::TendError;
use crate::headroom::Headroom;
use crate::history::History;
use crate::mappings::{Excluded, Extent, Survey};
use crate::options::TendOptions;
use crate::plan::{HoleFilling, plan};
use crate::relatives::{Relatives, forked_from};
use crate::stalls::Stalls;
use crate::status::Hindrance;
use crate::target::Target;

/// The findings of a tender before its first pass.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Outlook {
    /// The name of the process's first thread.
    pub name: String,
    /// The parent of the process, if the process is a forked child that has not started another
    /// program.
    pub forked_from: Option<i32>,
    /// The private anonymous memory of the process now.
    pub now: Extent,
    /// The private anonymous memory of the process after a pass.
    pub tended: Extent,
    /// Bytes of holes that a pass would fill.
    pub filled: u64,
    /// Bytes in ranges of 2 MiB with too many holes.
    pub sparse: u64,
    /// True if the memory limit of the process's control group cannot be read, so that no hole
    /// would be filled.
    pub is_limit_unknown: bool,
    /// Bytes on small pages in mappings that would be left as they are, by reason.
    pub excluded: Vec<(Excluded, u64)>,
    /// True if its allocator could ask for huge pages, and was not told to: jemalloc with `thp:always`. New memory is then
    /// huge at once.
    pub could_ask_for_huge_pages: bool,
    /// The hindrance that would keep a tender waiting now.
    pub hindrance: Option<Hindrance>,
    /// True if another tender tends the process.
    pub is_tended: bool,
}

impl Outlook {
    /// Inspects a process, with the default options of a tender.
    ///
    /// # Errors
    /// [`TendError`] with the reason why the process cannot be tended.
    pub fn of(pid: i32) -> Result<Self, TendError> {
        let (target, is_tended) = match Target::open(pid) {
            Err(TendError::Taken { .. }) => (Target::beside_a_tender(pid)?, true),
            target => (target?, false),
        };
        let options = TendOptions::default();
        let mut survey = Survey::of(target.folder())?;
        let headroom = Headroom::read(&Root::default(), &target);
        let is_limit_unknown = !headroom.may_grow();
        let looks = target.look(&mut survey)?;
        let now = survey.extent();
        let filling = match is_limit_unknown {
            true => HoleFilling::NOTHING,
            false => HoleFilling::of(&options, now.all, 0),
        };
        let plan = plan(looks, filling, &History::default(), Instant::now());
        let collapsed = plan.ranges.len() as u64 * hugekit::HUGE_PAGE_BYTES as u64;
        // Ranges of an older kernel may be huge already: it does not say.
        let huge = (now.huge + collapsed).min(now.all + plan.filled);
        let children = Relatives::default().look(&target);
        let child = (children > 0).then_some(Hindrance::Child { count: children });
        Ok(Self {
            name: target.name().into_owned(),
            forked_from: forked_from(pid),
            now,
            tended: Extent { huge, all: now.all + plan.filled, ..now },
            filled: plan.filled,
            sparse: plan.sparse,
            is_limit_unknown,
            excluded: survey.excluded(),
            could_ask_for_huge_pages: could_ask_for_huge_pages(target.folder()),
            hindrance: child
                .or_else(|| headroom.hindrance(&options, &Stalls::default(), Instant::now())),
            is_tended,
        })
    }
}
