//! Page tables of our own: what a fork does with them, and what the end of its child does. A fork copies a
//! table for the child, and the child's is unmapped again, each of both entry by entry or by runs.

use std::cell::Cell;
use std::time::{Duration, Instant};

use hugekit_machine::size::{GIB, KIB, MIB, Size};
use hugekit_pte::{
    Entry, Folio, Folios, Fork, Mapping, Piece, Pinned, UniformFolios, Unmapped, X86_64,
    copy_table, set_run, unbatched, unmap_table,
};

/// Bytes that are mapped.
pub(super) const MAPPED: usize = GIB;

pub(super) const BASE_PAGE: usize = 4 * KIB;

const PAGES: usize = MAPPED / BASE_PAGE;

/// Entries of an x86-64 table.
const TABLE: usize = 512;

/// Memory for three tables and the folios that they map, at most, and as much again to stay clear of.
pub(super) const BYTES: usize =
    2 * PAGES * (3 * size_of::<Entry<X86_64>>() + size_of::<(u64, Folio)>() + size_of::<u32>());

/// Every published size.
pub(super) const FOLIOS: [usize; 9] =
    [BASE_PAGE, 16 * KIB, 32 * KIB, 64 * KIB, 128 * KIB, 256 * KIB, 512 * KIB, MIB, 2 * MIB];

/// Folios of tables that are mixed in another way than by folio size.
const FOLIO: usize = 64 * KIB;

/// The number of pages for each hole, and of folios for each pinned folio.
const RARE: usize = 16;

/// Pages in a row that are alike on average, where they are not all alike.
const ALIKE: usize = 4;

/// The seed of all mixtures, so that they are alike in every run.
const SEED: u64 = 2024;

/// The options of `fork(2)` for private anonymous memory that is not tracked.
const FORK: Fork = Fork { mapping: Mapping::Private, child_keeps_uffd_wp: false };

/// The pages of the parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ParentPages {
    /// Folios of one size, all alike.
    Folios(usize),
    /// Folios of every size, in any order, each size with as many pages.
    MixedFolios,
    /// Pages that are not mapped, here and there.
    Holes,
    /// Pinned folios here and there, whose pages have a copy each in the child: a frame, not the bytes.
    Pinned,
    /// Clean pages beside dirty ones.
    MixedDirty,
    /// Pages that userfaultfd protects beside others.
    MixedUffd,
}

/// All of them, those by size first.
pub(super) fn workloads() -> impl Iterator<Item = ParentPages> {
    use ParentPages::{Holes, MixedDirty, MixedFolios, MixedUffd, Pinned};
    let mixed = [MixedFolios, Holes, Pinned, MixedDirty, MixedUffd];
    FOLIOS.into_iter().map(ParentPages::Folios).chain(mixed)
}

impl ParentPages {
    pub(super) fn label(self) -> String {
        match self {
            Self::Folios(folio) => Size(folio).to_string(),
            Self::MixedFolios => "mixed-folios".into(),
            Self::Holes => "holes".into(),
            Self::Pinned => "pinned".into(),
            Self::MixedDirty => "mixed-dirty".into(),
            Self::MixedUffd => "mixed-uffd".into(),
        }
    }

    /// The sizes of the folios, from the first frame on, in bytes.
    fn folios(self) -> Vec<usize> {
        let of = |folio: usize| vec![folio; MAPPED / folio];
        match self {
            Self::Folios(folio) => of(folio),
            Self::MixedFolios => mixed_folios(),
            _ => of(FOLIO),
        }
    }

    /// The parent has written every page, but for what is mixed.
    fn parent(self) -> Vec<Entry<X86_64>> {
        let written = Entry::new(0).writable().dirty().accessed();
        let mut parent = vec![Entry::empty(); PAGES];
        set_run(&mut parent, written);
        let mut random = fastrand::Rng::with_seed(SEED);
        match self {
            Self::Holes => {
                let holes = parent.iter_mut().filter(|_| random.usize(..RARE) == 0);
                holes.for_each(|entry| *entry = Entry::empty());
            }
            Self::MixedDirty => every_other_stretch(&mut parent, Entry::clean),
            Self::MixedUffd => {
                every_other_stretch(&mut parent, |entry| entry.write_protected().uffd_wp());
            }
            Self::Folios(_) | Self::MixedFolios | Self::Pinned => {}
        }
        parent
    }
}

/// The same number of pages of each size, shuffled.
fn mixed_folios() -> Vec<usize> {
    let share = MAPPED / FOLIOS.len() / (2 * MIB) * (2 * MIB);
    let mut folios: Vec<usize> =
        FOLIOS.iter().flat_map(|&folio| vec![folio; share / folio]).collect();
    let rest = MAPPED - folios.iter().sum::<usize>();
    folios.extend(vec![2 * MIB; rest / (2 * MIB)]);
    fastrand::Rng::with_seed(SEED).shuffle(&mut folios);
    folios
}

/// Changes stretches of pages and leaves as many between them, of random lengths.
fn every_other_stretch(
    entries: &mut [Entry<X86_64>],
    change: impl Fn(Entry<X86_64>) -> Entry<X86_64>,
) {
    let (mut random, mut changes) = (fastrand::Rng::with_seed(SEED), false);
    for entry in entries {
        changes ^= random.usize(..ALIKE) == 0;
        if changes {
            *entry = change(*entry);
        }
    }
}

/// The timed part of a turn: the fork, or unmapping the child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ForkMethod {
    pub(super) name: &'static str,
    unmaps: bool,
    batched: bool,
}

/// In the order of the cases: each is compared with the one before it.
pub(super) const METHODS: [ForkMethod; 4] = [
    ForkMethod { name: "unbatched", unmaps: false, batched: false },
    ForkMethod { name: "batched", unmaps: false, batched: true },
    ForkMethod { name: "unmap-unbatched", unmaps: true, batched: false },
    ForkMethod { name: "unmap-batched", unmaps: true, batched: true },
];

/// Tables of a parent and its child, and the folios that they map.
#[derive(Debug)]
pub(super) struct Tables {
    /// The parent's before it forks.
    before: Vec<Entry<X86_64>>,
    parent: Vec<Entry<X86_64>>,
    child: Vec<Entry<X86_64>>,
    folios: Found,
    /// Pages of folios that the child maps.
    resident: u64,
}

/// The way from a frame to its folio.
#[derive(Debug)]
enum Found {
    BySize { order: u32, folios: Vec<Folio> },
    InTable(InTable),
}

/// Folios of any size, side by side: the folio of each frame is written down, as a kernel does.
#[derive(Debug)]
struct InTable {
    of_frame: Vec<u32>,
    /// With their first frames. Behind those that the parent maps come those for copies.
    folios: Vec<(u64, Folio)>,
    next_copy: Cell<u64>,
}

impl InTable {
    fn new(sizes: &[usize], pinned: bool) -> Self {
        let copies = if pinned { PAGES / RARE } else { 0 };
        let sizes = sizes.iter().copied().chain(vec![BASE_PAGE; copies]);
        let (mut of_frame, mut folios) = (Vec::new(), Vec::new());
        for (index, size) in sizes.enumerate() {
            let (first, pages) = (of_frame.len(), size / BASE_PAGE);
            let folio = Folio::new(pages as u32);
            if pinned && first < PAGES && index % RARE == 0 {
                folio.pin();
            }
            folios.push((first as u64, folio));
            of_frame.resize(first + pages, index as u32);
        }
        Self { of_frame, folios, next_copy: Cell::new(PAGES as u64) }
    }
}

impl Folios for InTable {
    type Error = Pinned;

    #[inline]
    fn find(&self, frame: u64) -> Option<Piece<'_>> {
        let index = *self.of_frame.get(usize::try_from(frame).ok()?)?;
        let (first, folio) = &self.folios[index as usize];
        let left = u64::from(folio.pages()) - (frame - first);
        Some(Piece { folio, left: left as usize })
    }

    fn copy_page(&self, _frame: u64) -> Result<u64, Pinned> {
        let copy = self.next_copy.get();
        let piece = self.find(copy).ok_or(Pinned)?;
        self.next_copy.set(copy + 1);
        piece.folio.get(1);
        piece.folio.map(1);
        Ok(copy)
    }
}

impl Found {
    fn new(workload: ParentPages) -> Self {
        let sizes = workload.folios();
        match workload {
            ParentPages::Folios(folio) => {
                let pages = folio / BASE_PAGE;
                let folios = sizes.iter().map(|_| Folio::new(pages as u32)).collect();
                Self::BySize { order: pages.ilog2(), folios }
            }
            _ => Self::InTable(InTable::new(&sizes, workload == ParentPages::Pinned)),
        }
    }
}

impl Tables {
    pub(super) fn new(workload: ParentPages) -> Self {
        let (before, folios) = (workload.parent(), Found::new(workload));
        match &folios {
            Found::BySize { order, folios } => map(&before, &UniformFolios::new(0, *order, folios)),
            Found::InTable(folios) => map(&before, folios),
        }
        let (parent, child) = (before.clone(), vec![Entry::empty(); PAGES]);
        Self { before, parent, child, folios, resident: 0 }
    }

    /// A fork, the end of the child, and the parent writes every page again; one of the first two is
    /// timed.
    pub(super) fn turn(&mut self, method: ForkMethod) -> Duration {
        let copied = self.copy(method.unmaps || method.batched);
        let unmapped = self.unmap(!method.unmaps || method.batched);
        self.parent.copy_from_slice(&self.before);
        if method.unmaps { unmapped } else { copied }
    }

    fn copy(&mut self, batched: bool) -> Duration {
        let Self { parent, child, folios, resident, .. } = self;
        match folios {
            Found::BySize { order, folios } => {
                copy(parent, child, &UniformFolios::new(0, *order, folios), resident, batched)
            }
            Found::InTable(folios) => copy(parent, child, folios, resident, batched),
        }
    }

    fn unmap(&mut self, batched: bool) -> Duration {
        let Self { child, folios, resident, .. } = self;
        let elapsed = match folios {
            Found::BySize { order, folios } => {
                unmap(child, &UniformFolios::new(0, *order, folios), resident, batched)
            }
            Found::InTable(folios) => {
                folios.next_copy.set(PAGES as u64);
                unmap(child, folios, resident, batched)
            }
        };
        assert_eq!(self.resident, 0, "no page is mapped");
        elapsed
    }
}

/// The parent has mapped its pages, and no other process has.
fn map(parent: &[Entry<X86_64>], folios: &impl Folios) {
    let present = parent.iter().filter(|entry| entry.is_present());
    for piece in present.filter_map(|entry| folios.find(entry.frame())) {
        piece.folio.get(1);
        piece.folio.map(1);
    }
}

/// Copies all tables, one after the other.
fn copy<L: Folios<Error = Pinned>>(
    parent: &mut [Entry<X86_64>],
    child: &mut [Entry<X86_64>],
    folios: &L,
    resident: &mut u64,
    batched: bool,
) -> Duration {
    let copy = if batched { copy_table::<X86_64, L> } else { unbatched::copy_table::<X86_64, L> };
    let tables = parent.chunks_mut(TABLE).zip(child.chunks_mut(TABLE));
    let start = Instant::now();
    for (parent, child) in tables {
        copy(parent, child, folios, FORK, resident).expect("there is a frame for every copy");
    }
    start.elapsed()
}

/// Unmaps all tables of the child, one after the other. No CPU remembers them, so that references go at once.
fn unmap<L: Folios>(
    child: &mut [Entry<X86_64>],
    folios: &L,
    resident: &mut u64,
    batched: bool,
) -> Duration {
    let give_back = |gone: Unmapped<'_>| {
        gone.put();
    };
    let start = Instant::now();
    for table in child.chunks_mut(TABLE) {
        match batched {
            true => unmap_table(table, folios, resident, give_back),
            false => unbatched::unmap_table(table, folios, resident, give_back),
        }
    }
    start.elapsed()
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Tables {
        /// References and mappings of every folio.
        fn counts(&self) -> Vec<(u64, u64)> {
            let counts = |folio: &Folio| (folio.references(), folio.mappings());
            match &self.folios {
                Found::BySize { folios, .. } => folios.iter().map(counts).collect(),
                Found::InTable(found) => found.folios.iter().map(|(_, one)| counts(one)).collect(),
            }
        }
    }

    #[test]
    fn every_way_leaves_the_same_and_no_trace() {
        for workload in workloads() {
            let mut tables = Tables::new(workload);
            let fresh = tables.counts();
            let present = tables.before.iter().filter(|entry| entry.is_present()).count();
            let mut copies = Vec::new();
            for batched in [false, true] {
                tables.copy(batched);
                assert_eq!(tables.resident, present as u64, "{workload:?}");
                copies.push((tables.parent.clone(), tables.child.clone(), tables.counts()));
                tables.unmap(batched);
                assert!(tables.child.iter().all(|entry| entry.is_empty()), "{workload:?}");
                assert!(tables.counts() == fresh, "{workload:?}");
                tables.parent.copy_from_slice(&tables.before);
            }
            assert!(copies[0] == copies[1], "{workload:?}");
            for method in METHODS {
                tables.turn(method);
                assert!(tables.parent == tables.before && tables.counts() == fresh, "{method:?}");
            }
        }
    }

    /// So many of the parent's pages have something, in percent.
    fn percent(workload: ParentPages, has: fn(&Entry<X86_64>) -> bool) -> usize {
        let parent = workload.parent();
        (100 * parent.iter().filter(|entry| has(entry)).count()).div_ceil(parent.len())
    }

    #[test]
    fn tables_are_mixed_as_they_are_called() {
        use ParentPages::{Holes, MixedDirty, MixedFolios, MixedUffd};
        assert_eq!(percent(Holes, |entry| entry.is_empty()), 100_usize.div_ceil(RARE));
        assert!((45..=55).contains(&percent(MixedDirty, |entry| entry.is_dirty())));
        assert!((45..=55).contains(&percent(MixedUffd, |entry| entry.is_uffd_wp())));
        assert_eq!(percent(MixedFolios, |entry| entry.is_present()), 100);
        let folios = MixedFolios.folios();
        assert_eq!(folios.iter().sum::<usize>(), MAPPED);
        assert!(FOLIOS.iter().all(|size| folios.contains(size)));
        assert!(folios.windows(2).filter(|pair| pair[0] != pair[1]).count() > folios.len() / 4);
    }

    #[test]
    fn pages_of_pinned_folios_are_copied_and_others_shared() {
        let mut tables = Tables::new(ParentPages::Pinned);
        tables.copy(true);
        let pairs = tables.parent.iter().zip(&tables.child);
        let copied = pairs.filter(|(parent, child)| parent.frame() != child.frame());
        assert!(copied.clone().all(|(parent, child)| parent.is_writable() && child.is_writable()));
        assert_eq!(copied.count(), PAGES / RARE);
    }
}
