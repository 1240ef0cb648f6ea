//! Properties of runs and of copied tables, for every format.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::ptr;

use hugekit_pte::{
    Arm64, Arm64Pages64K, Bits, CopyError, Entry, Folio, Folios, Fork, Format, Layout, Mapping,
    Piece, Policy, Run, Unmapped, Visitor, copy_run, copy_table, for_each_format, run_length,
    set_run, unbatched, unmap_table, write_protect_run,
};
use proptest::prelude::*;
use proptest::sample::select;

/// The parts of one entry, in every format.
#[derive(Clone, Copy, Debug)]
struct Properties {
    writable: bool,
    dirty: bool,
    /// Dirty as the hardware says it, where it has a way of its own.
    dirty_by_hardware: bool,
    accessed: bool,
    soft_dirty: bool,
    uffd_wp: bool,
    special: bool,
    /// Flips one of the bits that the format does not name.
    other: Option<u8>,
}

/// A property that is given to an entry.
type Step<F> = fn(Entry<F>) -> Entry<F>;

impl Properties {
    fn entry<F: Format>(self, frame: u64) -> Entry<F> {
        let mut entry = Entry::new(frame);
        let steps: [(bool, Step<F>); 6] = [
            (self.writable, Entry::writable),
            (self.dirty, Entry::dirty),
            (self.accessed, Entry::accessed),
            (self.soft_dirty, Entry::soft_dirty),
            (self.uffd_wp, Entry::uffd_wp),
            (self.special, Entry::special),
        ];
        for (_, step) in steps.iter().filter(|(wanted, _)| *wanted) {
            entry = step(entry);
        }
        let Layout { store_is_dirty, store, .. } = F::LAYOUT;
        if store_is_dirty && self.writable && self.dirty_by_hardware {
            entry = with_bits(entry, |bits| bits & !store.off);
        }
        match self.other {
            Some(bit) => with_bits(entry, |bits| bits ^ unnamed_bit::<F>(bit)),
            None => entry,
        }
    }
}

fn with_bits<F: Format>(entry: Entry<F>, change: impl Fn(u64) -> u64) -> Entry<F> {
    Entry::from_bits(F::Bits::truncated(change(entry.bits().into())))
}

/// Bits that a flag, the frame or `present` and `special` occupy.
fn named<F: Format>() -> u64 {
    let layout = F::LAYOUT;
    let flags = [
        layout.accessed,
        layout.dirty,
        layout.write,
        layout.store,
        layout.soft_dirty,
        layout.uffd_wp,
    ];
    flags.iter().fold(layout.present | layout.special, |sum, flag| sum | flag.on | flag.off)
        | layout.frame.encode(u64::MAX)
}

fn unnamed_bit<F: Format>(choice: u8) -> u64 {
    let width = 8 * size_of::<F::Bits>() as u32;
    let free: Vec<u32> = (0..width).filter(|bit| named::<F>() >> bit & 1 == 0).collect();
    1 << free[usize::from(choice) % free.len()]
}

fn properties() -> impl Strategy<Value = Properties> {
    let rarely = || prop::bool::weighted(0.03);
    let other = prop::option::weighted(0.03, any::<u8>());
    (any::<[bool; 5]>(), rarely(), rarely(), other).prop_map(
        |([writable, dirty, dirty_by_hardware, accessed, soft_dirty], uffd_wp, special, other)| {
            Properties {
                writable,
                dirty,
                dirty_by_hardware,
                accessed,
                soft_dirty,
                uffd_wp,
                special,
                other,
            }
        },
    )
}

/// Entries one after the other.
#[derive(Clone, Debug)]
enum Segment {
    Empty(usize),
    /// Neither empty nor present: as of a page swapped out.
    Swapped(u32),
    /// Pages of the world from one on, alike but for single entries.
    Pages {
        from: usize,
        len: usize,
        like: Properties,
        but: Vec<(usize, Properties)>,
    },
}

fn segment() -> impl Strategy<Value = Segment> {
    let pages = (0..WORLD, 1..80_usize, properties(), prop::collection::vec(exception(), 0..4))
        .prop_map(|(from, len, like, but)| Segment::Pages { from, len, like, but });
    prop_oneof![
        1 => (1..5_usize).prop_map(Segment::Empty),
        1 => any::<u32>().prop_map(Segment::Swapped),
        8 => pages,
    ]
}

fn exception() -> impl Strategy<Value = (usize, Properties)> {
    (0..80_usize, properties())
}

/// Pages of the world, some of them in no folio.
const WORLD: usize = 200;

/// Folios side by side, of these many pages each; whether it is pinned, or no folio at all.
#[derive(Clone, Debug)]
struct World {
    folios: Vec<(u32, State)>,
    /// The distance of the world's begin below the carry, or below the largest frame.
    before: u64,
    /// Pages there are for copies.
    copies: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Shared,
    Pinned,
    Uncounted,
}

fn world() -> impl Strategy<Value = World> {
    let pages = select(&[1_u32, 1, 2, 4, 16, 64][..]);
    let state = prop_oneof![
        6 => Just(State::Shared),
        1 => Just(State::Pinned),
        1 => Just(State::Uncounted),
    ];
    let folios = prop::collection::vec((pages, state), 4..40);
    let copies = prop_oneof![3 => Just(u64::MAX), 1 => 0..20_u64];
    (folios, 0..WORLD as u64, copies).prop_map(|(folios, before, copies)| World {
        folios,
        before,
        copies,
    })
}

/// Returns the first frame of the world: it crosses the carry if the format has one.
fn first_frame<F: Format>(world: &World) -> u64 {
    let place = F::LAYOUT.frame;
    match place.high_bits {
        0 => place.max() / 2 - world.before,
        _ => (1 << place.low_bits) - world.before,
    }
}

/// Folios at their frames, and the pages that were copied.
struct Tracked {
    first_frame: u64,
    folios: Vec<(u64, Folio, State)>,
    copied: RefCell<Vec<u64>>,
    left: Cell<u64>,
    /// The number of requests for a folio.
    finds: Cell<usize>,
}

impl Tracked {
    fn new<F: Format>(world: &World) -> Self {
        let first_frame = first_frame::<F>(world);
        let mut next = first_frame;
        let folios = world.folios.iter().map(|&(pages, state)| {
            let folio = Folio::new(pages);
            if state == State::Pinned {
                folio.pin();
            }
            next += u64::from(pages);
            (next - u64::from(pages), folio, state)
        });
        Self {
            first_frame,
            folios: folios.collect(),
            copied: RefCell::default(),
            left: Cell::new(world.copies),
            finds: Cell::new(0),
        }
    }

    fn counts(&self) -> Vec<(u64, u64)> {
        self.folios.iter().map(|(_, folio, _)| (folio.references(), folio.mappings())).collect()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct NoPage;

impl Folios for Tracked {
    type Error = NoPage;

    fn find(&self, frame: u64) -> Option<Piece<'_>> {
        self.finds.set(self.finds.get() + 1);
        let after = self.folios.partition_point(|(first, ..)| *first <= frame);
        let (first, folio, state) = &self.folios[after.checked_sub(1)?];
        let left = u64::from(folio.pages()).checked_sub(frame - first)?;
        (left > 0 && *state != State::Uncounted).then_some(Piece { folio, left: left as usize })
    }

    fn copy_page(&self, frame: u64) -> Result<u64, NoPage> {
        self.left.set(self.left.get().checked_sub(1).ok_or(NoPage)?);
        self.copied.borrow_mut().push(frame);
        Ok(self.first_frame - self.copied.borrow().len() as u64)
    }
}

fn table<F: Format>(world: &World, segments: &[Segment]) -> Vec<Entry<F>> {
    let first = first_frame::<F>(world);
    let mut table = Vec::new();
    for segment in segments {
        match segment {
            Segment::Empty(len) => table.extend((0..*len).map(|_| Entry::empty())),
            Segment::Swapped(bits) => {
                let bits = (u64::from(*bits) << 8 | F::LAYOUT.empty | 1 << 7) & !F::LAYOUT.present;
                table.push(Entry::from_bits(F::Bits::truncated(bits)));
            }
            Segment::Pages { from, len, like, but } => table.extend((0..*len).map(|at| {
                let single = but.iter().find(|(place, _)| *place == at);
                let properties = single.map_or(*like, |(_, other)| *other);
                // Accessed differs from entry to entry: no run may end for it.
                let accessed = properties.accessed ^ (at % 3 == 0);
                Properties { accessed, ..properties }.entry(first + (from + at) as u64)
            })),
        }
    }
    table
}

fn fork() -> impl Strategy<Value = Fork> {
    let mapping = prop_oneof![2 => Just(Mapping::Private), 1 => Just(Mapping::Shared)];
    (mapping, any::<bool>())
        .prop_map(|(mapping, child_keeps_uffd_wp)| Fork { mapping, child_keeps_uffd_wp })
}

/// Everything that a copy leaves behind.
#[derive(Debug, PartialEq)]
struct Outcome<F: Format> {
    result: Result<(), CopyError<NoPage>>,
    parent: Vec<Entry<F>>,
    child: Vec<Entry<F>>,
    counts: Vec<(u64, u64)>,
    copied: Vec<u64>,
    resident: u64,
}

type CopyTable<F> =
    fn(&mut [Entry<F>], &mut [Entry<F>], &Tracked, Fork, &mut u64) -> Result<(), CopyError<NoPage>>;

fn outcome<F: Format>(
    world: &World,
    parent: &[Entry<F>],
    fork: Fork,
    copy: CopyTable<F>,
) -> (Outcome<F>, usize) {
    let folios = Tracked::new::<F>(world);
    let mut parent = parent.to_vec();
    let mut child = vec![Entry::empty(); parent.len()];
    let mut resident = 0;
    let result = copy(&mut parent, &mut child, &folios, fork, &mut resident);
    let (counts, finds, copied) = (folios.counts(), folios.finds.get(), folios.copied.into_inner());
    (Outcome { result, parent, child, counts, copied, resident }, finds)
}

/// Returns the number of requests for a folio that a copy in batches makes: one for each page that may not be shared,
/// one for each frame of no folio, and one for each run of the other pages.
fn runs_to_find<F: Format>(table: &[Entry<F>], folios: &Tracked, fork: Fork) -> usize {
    let (mut finds, mut at) = (0, 0);
    while at < table.len() {
        let mut len = 1;
        if table[at].is_present() && !table[at].is_special() {
            finds += 1;
            let piece = folios.find(table[at].frame());
            let is_shared =
                |piece: &Piece<'_>| fork.mapping == Mapping::Shared || !piece.folio.is_pinned();
            if let Some(piece) = piece.filter(is_shared) {
                let end = table.len().min(at + piece.left);
                len = naive_run(&table[at..end], None).len;
            }
        }
        at += len;
    }
    finds
}

/// The demands on one copied entry, property by property.
fn check_entry<F: Format>(before: Entry<F>, child: Entry<F>, fork: Fork, is_copy: bool) {
    let private = fork.mapping == Mapping::Private;
    assert_eq!(child.is_writable(), before.is_writable() && (is_copy || !private));
    assert_eq!(child.is_dirty(), is_copy || before.is_dirty() && private);
    assert!(!child.is_accessed());
    assert_eq!(child.is_soft_dirty(), before.is_soft_dirty());
    assert_eq!(child.is_uffd_wp(), before.is_uffd_wp() && fork.child_keeps_uffd_wp);
    assert_eq!(child.is_special(), before.is_special());
    assert_eq!(child.frame() == before.frame(), !is_copy);
    let (child, before): (u64, u64) = (child.bits().into(), before.bits().into());
    assert_eq!((child ^ before) & !named::<F>(), 0, "a bit that the format does not name");
}

struct CheckCopy<'a> {
    world: &'a World,
    segments: &'a [Segment],
    fork: Fork,
}

impl Visitor for CheckCopy<'_> {
    fn visit<F: Format>(&mut self) {
        let Self { world, fork, .. } = *self;
        let before = table::<F>(world, self.segments);
        let (batched, finds) = outcome(world, &before, fork, copy_table);
        let (unbatched, _) = outcome(world, &before, fork, unbatched::copy_table);
        assert_eq!(batched, unbatched);
        let done = batched.result.map_or_else(|error| error.at, |()| before.len());
        assert_eq!(batched.parent[done..], before[done..]);
        assert!(batched.child[done..].iter().all(|entry| entry.is_empty()));
        let folios = Tracked::new::<F>(world);
        // The copy that failed had asked for its page's folio, too.
        let tried = before.len().min(done + 1);
        assert_eq!(finds, runs_to_find(&before[..tried], &folios, fork), "runs are found whole");
        let entries = batched.parent.iter().zip(&batched.child);
        for (&old, (&parent, &child)) in before[..done].iter().zip(entries) {
            if !old.is_present() {
                assert_eq!((parent, child), (old, old));
                continue;
            }
            let piece = if old.is_special() { None } else { folios.find(old.frame()) };
            let private = fork.mapping == Mapping::Private;
            let is_copy = private && piece.is_some_and(|piece| piece.folio.is_pinned());
            check_entry(old, child, fork, is_copy);
            let parent_is_protected = private && !is_copy;
            assert_eq!(parent, if parent_is_protected { protected(old) } else { old });
            if let (Some(piece), false) = (piece, is_copy) {
                piece.folio.get(1);
                piece.folio.map(1);
            }
        }
        assert_eq!(batched.counts, folios.counts());
        let mapped: u64 = batched.counts.iter().map(|(_, mappings)| mappings).sum();
        assert_eq!(batched.resident, mapped + batched.copied.len() as u64);
    }
}

/// Everything that unmapping leaves behind.
#[derive(Debug, PartialEq)]
struct Left<F: Format> {
    table: Vec<Entry<F>>,
    counts: Vec<(u64, u64)>,
    resident: u64,
    /// Which folios were dirty, and which accessed.
    marked: [BTreeSet<usize>; 2],
}

/// The folios that a table is unmapped with, and its runs with their first frames.
struct Unmapping<'f> {
    folios: &'f Tracked,
    runs: Vec<(u64, Run)>,
    marked: [BTreeSet<usize>; 2],
}

impl<'f> Unmapping<'f> {
    fn of(folios: &'f Tracked) -> Self {
        Self { folios, runs: Vec::new(), marked: Default::default() }
    }

    fn gone(&mut self, gone: Unmapped<'f>) {
        let folio = self.folios.folios.iter().position(|(_, folio, _)| ptr::eq(folio, gone.folio));
        let folio = folio.expect("a folio of this world");
        for (marked, any) in self.marked.iter_mut().zip([gone.run.any_dirty, gone.run.any_accessed])
        {
            marked.extend(any.then_some(folio));
        }
        self.runs.push((gone.frame, gone.run));
        gone.put();
    }
}

/// Returns the outcome of unmapping, computed naively: entry by entry, and runs by [`naive_run`].
fn naively_left<F: Format>(table: &[Entry<F>], folios: &Tracked) -> (Left<F>, Vec<(u64, Run)>) {
    let folio_of = |entry: Entry<F>| {
        let piece = (entry.is_present() && !entry.is_special()).then(|| folios.find(entry.frame()));
        piece.flatten()
    };
    let place =
        |folio| folios.folios.iter().position(|(_, other, _)| ptr::eq(folio, other)).unwrap();
    let folios_with = |has: fn(Entry<F>) -> bool| {
        let with = table.iter().filter(|entry| has(**entry)).filter_map(|entry| folio_of(*entry));
        with.map(|piece| place(piece.folio)).collect()
    };
    let left = |entry: &Entry<F>| if entry.is_present() { Entry::empty() } else { *entry };
    let (mut runs, mut at) = (Vec::new(), 0);
    while at < table.len() {
        let Some(piece) = folio_of(table[at]) else {
            at += 1;
            continue;
        };
        let end = table.len().min(at + piece.left);
        let run = naive_run(&table[at..end], None);
        runs.push((table[at].frame(), run));
        at += run.len;
    }
    let outcome = Left {
        table: table.iter().map(left).collect(),
        counts: vec![(0, 0); folios.folios.len()],
        resident: 0,
        marked: [folios_with(Entry::is_dirty), folios_with(Entry::is_accessed)],
    };
    (outcome, runs)
}

struct CheckUnmap<'a> {
    world: &'a World,
    segments: &'a [Segment],
}

impl CheckUnmap<'_> {
    /// Folios that this table alone maps, and how many of its pages are theirs.
    fn mapped<F: Format>(&self, table: &[Entry<F>]) -> (Tracked, u64) {
        let folios = Tracked::new::<F>(self.world);
        let counted = table.iter().filter(|entry| entry.is_present() && !entry.is_special());
        let pieces: Vec<_> = counted.filter_map(|entry| folios.find(entry.frame())).collect();
        for piece in &pieces {
            piece.folio.get(1);
            piece.folio.map(1);
        }
        let resident = pieces.len() as u64;
        (folios, resident)
    }
}

impl Visitor for CheckUnmap<'_> {
    fn visit<F: Format>(&mut self) {
        let before = table::<F>(self.world, self.segments);
        let left = |batched: bool| {
            let ((folios, mut resident), mut table) = (self.mapped(&before), before.clone());
            let mut unmapping = Unmapping::of(&folios);
            let gone = |gone| unmapping.gone(gone);
            match batched {
                true => unmap_table(&mut table, &folios, &mut resident, gone),
                false => unbatched::unmap_table(&mut table, &folios, &mut resident, gone),
            }
            let Unmapping { runs, marked, .. } = unmapping;
            (Left { table, counts: folios.counts(), resident, marked }, runs)
        };
        let (folios, resident) = self.mapped(&before);
        let right = naively_left(&before, &folios);
        assert_eq!(left(true), right);
        let (unbatched, ones) = left(false);
        assert_eq!(unbatched, right.0);
        assert!(ones.len() as u64 == resident && ones.iter().all(|(_, run)| run.len == 1));
    }
}

/// The parent's entry afterwards: only those that may be written change.
fn protected<F: Format>(entry: Entry<F>) -> Entry<F> {
    if entry.is_writable() { entry.write_protected() } else { entry }
}

/// A run said naively: property by property, frame by frame. Without a policy only frames matter.
fn naive_run<F: Format>(entries: &[Entry<F>], policy: Option<Policy>) -> Run {
    let first = entries[0];
    if !first.is_present() || first.is_special() {
        return Run::default();
    }
    let unnamed = |entry: Entry<F>| -> u64 { Into::<u64>::into(entry.bits()) & !named::<F>() };
    let respected = |entry: Entry<F>, policy: Policy| {
        (!policy.respect_write || entry.is_writable() == first.is_writable())
            && (!policy.respect_dirty || entry.is_dirty() == first.is_dirty())
            && (!policy.respect_soft_dirty || entry.is_soft_dirty() == first.is_soft_dirty())
            && entry.is_uffd_wp() == first.is_uffd_wp()
            && unnamed(entry) == unnamed(first)
    };
    let alike = |(at, entry): &(usize, &Entry<F>)| {
        entry.is_present()
            && !entry.is_special()
            && entry.frame() == first.frame() + *at as u64
            && policy.is_none_or(|policy| respected(**entry, policy))
    };
    let run: Vec<Entry<F>> =
        entries.iter().enumerate().take_while(alike).map(|(_, entry)| *entry).collect();
    Run {
        len: run.len(),
        any_writable: run.iter().any(|entry| entry.is_writable()),
        any_dirty: run.iter().any(|entry| entry.is_dirty()),
        any_accessed: run.iter().any(|entry| entry.is_accessed()),
        any_soft_dirty: run.iter().any(|entry| entry.is_soft_dirty()),
    }
}

struct CheckRuns<'a> {
    world: &'a World,
    segments: &'a [Segment],
    policy: Policy,
}

impl Visitor for CheckRuns<'_> {
    fn visit<F: Format>(&mut self) {
        let entries = table::<F>(self.world, self.segments);
        for at in 0..entries.len() {
            let run = run_length(&entries[at..], self.policy);
            assert_eq!(run, naive_run(&entries[at..], Some(self.policy)), "{:?}", entries[at]);
        }
    }
}

struct CheckSet {
    before: u64,
    len: usize,
    properties: Properties,
    fork: Fork,
}

impl CheckSet {
    /// A run copied is each of its entries copied, where none is counted.
    fn check_copy<F: Format>(&self, run: &[Entry<F>]) {
        let world = World { folios: Vec::new(), before: 0, copies: 0 };
        let (one_by_one, _) = outcome(&world, run, self.fork, unbatched::copy_table);
        let (mut parent, mut child) = (run.to_vec(), vec![Entry::empty(); run.len()]);
        copy_run(&mut parent, &mut child, self.fork, self.properties.writable);
        assert_eq!((parent, child), (one_by_one.parent, one_by_one.child));
    }
}

impl Visitor for CheckSet {
    fn visit<F: Format>(&mut self) {
        let place = F::LAYOUT.frame;
        let carry = 1 << place.low_bits;
        let last = place.max() + 1 - self.len as u64;
        for frame in [0, carry - self.before, last] {
            let frame = frame.min(last);
            let entry = |at| self.properties.entry::<F>(frame + at as u64);
            let mut run = vec![Entry::empty(); self.len];
            set_run(&mut run, entry(0));
            assert_eq!(run, (0..self.len).map(entry).collect::<Vec<_>>());
            self.check_copy(&run);
            write_protect_run(&mut run);
            for (at, after) in run.into_iter().enumerate() {
                assert_eq!(after, entry(at).write_protected());
                assert!(!after.is_writable());
                assert_eq!(after.is_dirty(), entry(at).is_dirty());
            }
        }
    }
}

proptest! {
    #[test]
    fn batched_and_unbatched_leave_the_same(
        world in world(),
        segments in prop::collection::vec(segment(), 1..12),
        fork in fork(),
    ) {
        for_each_format(&mut CheckCopy { world: &world, segments: &segments, fork });
    }

    #[test]
    fn what_is_unmapped_is_empty_and_counted_once_per_run(
        world in world(),
        segments in prop::collection::vec(segment(), 1..12),
    ) {
        for_each_format(&mut CheckUnmap { world: &world, segments: &segments });
    }

    #[test]
    fn a_run_is_what_its_definition_says(
        world in world(),
        segments in prop::collection::vec(segment(), 1..4),
        [respect_write, respect_dirty, respect_soft_dirty] in any::<[bool; 3]>(),
    ) {
        let policy = Policy { respect_write, respect_dirty, respect_soft_dirty };
        for_each_format(&mut CheckRuns { world: &world, segments: &segments, policy });
    }

    #[test]
    fn a_run_set_and_protected_is_entry_by_entry(
        before in 0..600_u64,
        len in 1..600_usize,
        properties in properties(),
        fork in fork(),
    ) {
        for_each_format(&mut CheckSet { before, len, properties, fork });
    }
}

/// A folio of 64 pages whose addresses go through bit 48 (or, with LPA2, bit 50) is one run.
#[test]
fn a_run_goes_through_the_carry_into_the_high_address_bits() {
    fn check<F: Format>(carry_at: u32) {
        let first = (1_u64 << (carry_at - F::LAYOUT.page_shift)) - 20;
        let mut entries = [Entry::<F>::empty(); 64];
        set_run(&mut entries, Entry::new(first).writable());
        let frames: Vec<u64> = entries.iter().map(|entry| entry.frame()).collect();
        assert_eq!(frames, (first..first + 64).collect::<Vec<_>>());
        let run = run_length(&entries, Policy::default());
        assert_eq!((run.len, run.any_writable, run.any_dirty), (64, true, false));
    }
    check::<Arm64Pages64K>(48);
    check::<Arm64>(48);
    check::<Arm64>(50);
}

#[test]
fn a_run_ends_at_the_largest_frame() {
    struct Check;
    impl Visitor for Check {
        fn visit<F: Format>(&mut self) {
            let last = Entry::<F>::new(F::LAYOUT.frame.max());
            let entries = [last, Entry::new(0)];
            assert_eq!(run_length(&entries, Policy::default()).len, 1);
        }
    }
    for_each_format(&mut Check);
}

#[test]
#[should_panic(expected = "holds a frame 2 beyond")]
fn a_run_beyond_the_largest_frame_is_refused() {
    let last = Entry::<Arm64>::new(Arm64::LAYOUT.frame.max() - 1);
    set_run(&mut [Entry::empty(); 3], last);
}

#[test]
#[should_panic(expected = "different lengths")]
fn tables_of_different_lengths_are_refused() {
    let world = World { folios: vec![(1, State::Shared)], before: 0, copies: 0 };
    let folios = Tracked::new::<Arm64>(&world);
    let fork = Fork { mapping: Mapping::Shared, child_keeps_uffd_wp: false };
    let mut parent = [Entry::<Arm64>::empty(); 2];
    let _ = copy_table(&mut parent, &mut [], &folios, fork, &mut 0);
}
