//! An address space: its tables, its folios, and the frames that its pages are in.

use std::cell::RefCell;
use std::convert::Infallible;

use hugekit_pte::{Bits, Entry, Folio, Folios, Format, Piece};

use crate::cpu::Cpu;
use crate::memory::{COPIES, DATA, Memory, PAGE, PROGRAM};
use crate::model::Page;

/// The address of the pages that are read and written: beyond 4 GiB, to use more than 32 bits.
pub(crate) const ADDRESS: u64 = 64 << 30;

/// Tables of an address space, and entries of each.
const TABLES: usize = 3;
pub(crate) const ENTRIES: usize = 512;

/// Pages of an address space.
pub(crate) const PAGES: usize = TABLES * ENTRIES;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Shared,
    Pinned,
    /// Frames of no folio.
    Uncounted,
}

/// Entries one after the other. Those of a folio get what the letters say, in turn: `w`ritable,
/// `d`irty, `a`ccessed, `s`oft-dirty, protected by `u`serfaultfd, special (`x`).
#[derive(Clone, Copy, Debug)]
enum Part {
    Pages(usize, State, &'static [&'static str]),
    /// The same backwards: no two of its entries follow from each other.
    Backwards(usize, State, &'static [&'static str]),
    Hole(usize),
    /// Neither empty nor present: as of pages swapped out.
    SwappedOut(usize),
}

use Part::{Backwards, Hole, Pages, SwappedOut};
use State::{Pinned, Shared, Uncounted};

/// The address space, over and over. It fits no table, so that folios go on in the next one.
const PARTS: &[Part] = &[
    Pages(16, Shared, &["wda"]),
    Pages(16, Shared, &["wd", "w", "", "da", "wa", "d"]),
    Hole(5),
    Pages(1, Shared, &[""]),
    Pages(1, Shared, &["w"]),
    Pages(1, Shared, &["wd"]),
    Pages(64, Shared, &["wd", "wd", "wda"]),
    Pages(8, Pinned, &["wd", "w", "", "da"]),
    SwappedOut(3),
    Pages(4, Uncounted, &["wx", "x"]),
    Pages(4, Uncounted, &["w", "wd"]),
    Pages(1, Pinned, &["wda"]),
    Pages(32, Shared, &["du", "d", "wds", "ws"]),
    Backwards(8, Shared, &["w", "wd", "a"]),
    Hole(1),
    Pages(128, Shared, &["w", "wa", "wa", "a"]),
    Pages(2, Shared, &["w", "d"]),
    Pages(4, Pinned, &["", "wa"]),
    Pages(256, Shared, &["wd"]),
    Hole(40),
];

/// A tree of tables in the guest's memory.
#[derive(Clone, Debug)]
pub(crate) struct Tree {
    pub(crate) root: u64,
    tables: Vec<u64>,
}

impl Tree {
    /// Maps the program's part, and nothing else.
    pub(crate) fn new<C: Cpu>(memory: &mut Memory) -> Self {
        let [gigabytes, of_program, of_pages] = [(); 3].map(|()| memory.take_page());
        let program = C::MEMORY + PROGRAM.start;
        memory.set_word(slot(gigabytes, program >> 30), C::table(of_program));
        memory.set_word(slot(of_program, program >> 21), C::block(program));
        memory.set_word(slot(gigabytes, ADDRESS >> 30), C::table(of_pages));
        let tables: Vec<u64> = (0..TABLES).map(|_| memory.take_page()).collect();
        for (&table, at) in tables.iter().zip(0..) {
            memory.set_word(slot(of_pages, at), C::table(table));
        }
        let mut root = gigabytes;
        if C::FOUR_LEVELS {
            root = memory.take_page();
            memory.set_word(root, C::table(gigabytes));
        }
        Self { root: C::root(root), tables }
    }

    pub(crate) fn load<F: Format>(&self, memory: &Memory) -> Vec<Entry<F>> {
        let words = self.slots().map(|slot| memory.word(slot));
        words.map(|word| Entry::from_bits(F::Bits::truncated(word))).collect()
    }

    pub(crate) fn store<F: Format>(&self, memory: &mut Memory, entries: &[Entry<F>]) {
        for (slot, entry) in self.slots().zip(entries) {
            memory.set_word(slot, entry.bits().into());
        }
    }

    /// All entries of its tables, table by table: copied as one slice each.
    fn slots(&self) -> impl Iterator<Item = u64> {
        self.tables.iter().flat_map(|&table| (0..ENTRIES as u64).map(move |at| slot(table, at)))
    }
}

fn slot(table: u64, index: u64) -> u64 {
    table + 8 * (index % ENTRIES as u64)
}

/// Neither present nor empty, in every format.
const SWAPPED: u64 = 0x5_1200;

/// An address space that is about to fork: its entries, the same for the model, and its folios.
#[derive(Debug)]
pub(crate) struct Origin<F: Format> {
    /// Letters that are left out.
    left_out: &'static str,
    pub(crate) entries: Vec<Entry<F>>,
    pub(crate) pages: Vec<Option<Page>>,
    pub(crate) frames: Frames,
}

impl<F: Format> Origin<F> {
    /// For a CPU with memory from address `first` on, which refuses some of software's bits.
    pub(crate) fn new(first: u64, left_out: &'static str) -> Self {
        let first_copy = (first + COPIES.start) / PAGE;
        let frames = Frames { folios: Vec::new(), copied: RefCell::default(), first_copy };
        let mut origin = Self { left_out, entries: Vec::new(), pages: Vec::new(), frames };
        let mut frame = (first + DATA.start) / PAGE;
        for part in PARTS.iter().cycle() {
            if origin.entries.len() >= PAGES {
                break;
            }
            frame += origin.add(*part, frame);
        }
        origin.entries.truncate(PAGES);
        origin.pages.truncate(PAGES);
        origin.frames.count(&origin.entries);
        let copies = first_copy..(first + COPIES.end) / PAGE;
        origin.frames.folios.extend(copies.map(|frame| (frame, Folio::new(1))));
        origin
    }

    /// Returns how many frames the part takes.
    fn add(&mut self, part: Part, frame: u64) -> u64 {
        match part {
            Hole(pages) => self.add_none(Entry::empty(), pages),
            SwappedOut(pages) => {
                self.add_none(Entry::from_bits(F::Bits::truncated(SWAPPED)), pages);
            }
            Pages(pages, state, letters) => {
                self.add_folio(frame, pages, state);
                for at in 0..pages {
                    self.add_page(frame + at as u64, state, letters[at % letters.len()]);
                }
                return pages as u64;
            }
            Backwards(pages, state, letters) => {
                self.add_folio(frame, pages, state);
                for at in (0..pages).rev() {
                    self.add_page(frame + at as u64, state, letters[at % letters.len()]);
                }
                return pages as u64;
            }
        }
        0
    }

    fn add_none(&mut self, entry: Entry<F>, pages: usize) {
        self.entries.resize(self.entries.len() + pages, entry);
        self.pages.resize(self.entries.len(), None);
    }

    fn add_folio(&mut self, frame: u64, pages: usize, state: State) {
        if state != Uncounted {
            let folio = Folio::new(u32::try_from(pages).expect("a small folio"));
            if state == Pinned {
                folio.pin();
            }
            self.frames.folios.push((frame, folio));
        }
    }

    fn add_page(&mut self, frame: u64, state: State, letters: &str) {
        let letters: String =
            letters.chars().filter(|letter| !self.left_out.contains(*letter)).collect();
        let entry = letters.chars().fold(Entry::new(frame), |entry, letter| match letter {
            'w' => entry.writable(),
            'd' => entry.dirty(),
            'a' => entry.accessed(),
            's' => entry.soft_dirty(),
            'u' => entry.uffd_wp(),
            'x' => entry.special(),
            other => panic!("{other} means nothing"),
        });
        self.entries.push(entry);
        self.pages.push(Some(Page {
            frame,
            pinned: state == Pinned,
            writable: letters.contains('w'),
            dirty: letters.contains('d'),
            accessed: letters.contains('a'),
        }));
    }
}

/// The folios of all frames that pages are in, those of copies among them.
#[derive(Debug)]
pub(crate) struct Frames {
    /// With their first frames, in order.
    folios: Vec<(u64, Folio)>,
    /// The frames that were copied, and their copies.
    copied: RefCell<Vec<(u64, u64)>>,
    first_copy: u64,
}

impl Frames {
    /// Counts what a process has mapped by itself.
    fn count<F: Format>(&self, entries: &[Entry<F>]) {
        let mapped = entries.iter().filter(|entry| entry.is_present() && !entry.is_special());
        for piece in mapped.filter_map(|entry| self.find(entry.frame())) {
            piece.folio.get(1);
            piece.folio.map(1);
        }
    }

    /// The frames that were copied, and their copies.
    pub(crate) fn copied(&self) -> Vec<(u64, u64)> {
        self.copied.borrow().clone()
    }
}

/// There is always a page to copy to.
impl Folios for Frames {
    type Error = Infallible;

    fn find(&self, frame: u64) -> Option<Piece<'_>> {
        let after = self.folios.partition_point(|(first, _)| *first <= frame);
        let (first, folio) = &self.folios[after.checked_sub(1)?];
        let left = u64::from(folio.pages()).checked_sub(frame - first)?;
        (left > 0).then_some(Piece { folio, left: left as usize })
    }

    fn copy_page(&self, frame: u64) -> Result<u64, Infallible> {
        let mut copied = self.copied.borrow_mut();
        let copy = self.first_copy + copied.len() as u64;
        copied.push((frame, copy));
        let piece = self.find(copy).expect("a frame for a copy");
        piece.folio.get(1);
        piece.folio.map(1);
        Ok(copy)
    }
}
