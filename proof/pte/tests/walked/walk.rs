//! What the program is asked to do with each page of each address space, what it answers, and both
//! compared with the model.

use std::collections::{BTreeSet, HashMap};
use std::marker::PhantomData;

use hugekit_pte::{
    Entry, Fork, Format, Mapping, Policy, Unmapped, copy_table, run_length, unmap_table,
};
use libtest_mimic::Failed;

use crate::cpu::{Cpu, REQUEST, REQUESTS, REQUESTS_END, Refused, UNTOLD};
use crate::memory::{Memory, PAGE};
use crate::model::Page;
use crate::space::{ADDRESS, ENTRIES, Frames, Origin, PAGES, Tree};

/// Pages that one address space uses before it is another one's turn.
const TURN: usize = 64;

/// Words of a page that are used: each address space writes one of its own, and reads all of them in turn.
const WORDS: u64 = 3;

/// The content of the place for a word before the word is read.
const UNREAD: u64 = 0x00de_fec8_ed00;

/// Address spaces in a guest's memory, and what they should be.
pub(crate) struct Walked<C: Cpu> {
    memory: Memory,
    frames: Frames,
    spaces: Vec<Space>,
    /// Pages of folios that the child maps.
    resident: u64,
    /// The kinds of accesses that were made.
    seen: BTreeSet<Seen>,
    cpu: PhantomData<C>,
}

struct Space {
    tree: Tree,
    pages: Vec<Option<Page>>,
}

/// By which address space, whether it was a write, and whether the CPU let it through.
type Seen = (usize, bool, bool);

/// An access of one word.
#[derive(Clone, Copy, Debug)]
struct Request {
    space: usize,
    page: usize,
    /// In the page.
    word: u64,
    /// The value, of a write.
    write: Option<u64>,
}

/// The program's report of an access: the word that it read, or the CPU's code and address of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Read(u64),
    Written,
    Fault { code: u64, address: u64 },
}

impl Answer {
    /// Returns true if the report is right, as far as its machine reports.
    fn is(self, right: Self) -> bool {
        let told = |said, right| said == right || said == UNTOLD;
        match (self, right) {
            (
                Self::Fault { code, address },
                Self::Fault { code: its_code, address: its_address },
            ) => told(code, its_code) && told(address, its_address),
            _ => self == right,
        }
    }
}

impl Request {
    fn address(self) -> u64 {
        ADDRESS + self.page as u64 * PAGE + 8 * self.word
    }

    fn words(self) -> [u64; 3] {
        match self.write {
            None => [1, self.address(), UNREAD],
            Some(value) => [2, self.address(), value],
        }
    }
}

impl Page {
    /// The address of one of its words.
    fn at(&self, word: u64) -> u64 {
        self.frame * PAGE + 8 * word
    }
}

impl<C: Cpu> Walked<C> {
    /// An address space that has not been used.
    pub(crate) fn new() -> Self {
        let mut memory = Memory::new(C::MEMORY, REQUESTS_END);
        let origin = Origin::<C::Format>::new(C::MEMORY, C::REFUSED_BITS);
        let tree = Tree::new::<C>(&mut memory);
        tree.store(&mut memory, &origin.entries);
        for page in origin.pages.iter().flatten() {
            // Every page has words of its own, and none that a write makes.
            (0..WORDS).for_each(|word| memory.set_word(page.at(word), !page.at(word)));
        }
        let spaces = vec![Space { tree, pages: origin.pages }];
        let (frames, seen) = (origin.frames, BTreeSet::new());
        Self { memory, frames, spaces, resident: 0, seen, cpu: PhantomData }
    }

    /// Every address space uses some of its pages, in turns.
    pub(crate) fn use_pages(&mut self) -> Result<(), Failed> {
        let requests = self.requests();
        let mut expected = self.memory.clone();
        let answers = self.run(&requests)?;
        for (request, answer) in requests.iter().zip(answers) {
            let right = self.should(*request, &mut expected);
            assert!(answer.is(right), "{request:x?}: {answer:x?} instead of {right:x?}");
        }
        assert_eq!(self.memory.first_difference(&expected), None, "a page has other contents");
        (0..self.spaces.len()).for_each(|space| self.check_entries(space));
        Ok(())
    }

    /// The first address space forks. Its child is the second.
    pub(crate) fn fork(&mut self, mapping: Mapping) -> Result<(), Failed> {
        let fork = Fork { mapping, child_keeps_uffd_wp: false };
        let tree = Tree::new::<C>(&mut self.memory);
        let mut parent = self.spaces[0].tree.load::<C::Format>(&self.memory);
        let mut child = vec![Entry::empty(); PAGES];
        let mut resident = 0;
        for (parent, child) in parent.chunks_mut(ENTRIES).zip(child.chunks_mut(ENTRIES)) {
            copy_table(parent, child, &self.frames, fork, &mut resident)?;
        }
        self.spaces[0].tree.store(&mut self.memory, &parent);
        tree.store(&mut self.memory, &child);
        let copies: HashMap<u64, u64> = self.frames.copied().into_iter().collect();
        let pinned = self.spaces[0].pages.iter().flatten().filter(|page| page.pinned).count();
        assert_eq!(copies.len(), if mapping == Mapping::Private { pinned } else { 0 });
        for (from, to) in &copies {
            self.memory.copy_page(from * PAGE, to * PAGE);
        }
        let pages = self.spaces[0].pages.iter_mut();
        let pages = pages.map(|page| Some(page.as_mut()?.fork(mapping, &copies))).collect();
        self.spaces.push(Space { tree, pages });
        self.resident = resident;
        Ok(())
    }

    /// The child's pages are unmapped. What is said of each run is what the CPU has done with its pages.
    pub(crate) fn unmap_child(&mut self) {
        let Space { tree, pages } = &mut self.spaces[1];
        let mut entries = tree.load::<C::Format>(&self.memory);
        let any = |gone: Unmapped<'_>, has: fn(&Page) -> bool| {
            let frames = gone.frame..gone.frame + gone.run.len as u64;
            pages.iter().flatten().filter(|page| frames.contains(&page.frame)).any(has)
        };
        for table in entries.chunks_mut(ENTRIES) {
            unmap_table(table, &self.frames, &mut self.resident, |gone| {
                assert_eq!(gone.run.any_dirty, any(gone, |page| page.dirty), "{gone:?}");
                assert_eq!(gone.run.any_accessed, any(gone, |page| page.accessed), "{gone:?}");
                gone.put();
            });
        }
        tree.store(&mut self.memory, &entries);
        pages.fill(None);
        assert_eq!(self.resident, 0);
    }

    /// Both address spaces have read, written and been refused to.
    pub(crate) fn has_seen_everything(&self, mapping: Mapping) {
        let kinds = |space| {
            [(false, true), (false, false), (true, true), (true, false)]
                .map(|(write, allowed)| (space, write, allowed))
        };
        let missing: Vec<Seen> =
            [0, 1].into_iter().flat_map(kinds).filter(|kind| !self.seen.contains(kind)).collect();
        assert!(missing.is_empty(), "{mapping:?}: {missing:?}");
    }

    fn requests(&self) -> Vec<Request> {
        let turns = (0..PAGES).step_by(TURN);
        let spaces = || 0..self.spaces.len();
        turns
            .flat_map(|first| spaces().map(move |space| (space, first..first + TURN)))
            .flat_map(|(space, pages)| pages.flat_map(move |page| self.requests_of(space, page)))
            .collect()
    }

    /// Nothing, a read, a write, or both, differently in each address space. A page that may not be written
    /// is read before: whether a write that is refused counts as an access differs between CPUs.
    fn requests_of(&self, space: usize, page: usize) -> impl Iterator<Item = Request> {
        let choice = ((page + 7 * space + 31 * self.spaces.len()) * 0x9E37) >> 7;
        let writable = self.spaces[space].pages[page].is_some_and(|page| page.writable);
        let writes = choice & 1 != 0;
        let reads = choice & 2 != 0 || writes && !writable;
        let write = Some((self.spaces.len() << 32 | space << 16 | page) as u64);
        let read = Request { space, page, word: (choice >> 2) as u64 % WORDS, write: None };
        let written = Request { word: 1 + space as u64, write, ..read };
        [reads.then_some(read), writes.then_some(written)].into_iter().flatten()
    }

    /// Returns the answer that a request should have. It may change the memory and the page.
    fn should(&mut self, request: Request, memory: &mut Memory) -> Answer {
        let Request { space, word, write, .. } = request;
        let page = self.spaces[space].pages[request.page].as_mut();
        let refused = Refused { write: write.is_some(), present: page.is_some() };
        let page = page.filter(|page| page.writable || write.is_none());
        self.seen.insert((space, refused.write, page.is_some()));
        let Some(page) = page else {
            return Answer::Fault { code: C::code(refused), address: request.address() };
        };
        page.accessed = true;
        let Some(value) = write else { return Answer::Read(memory.word(page.at(word))) };
        page.dirty = true;
        memory.set_word(page.at(word), value);
        Answer::Written
    }

    /// Lays the requests out, has the CPU go through them, and collects its answers.
    fn run(&mut self, requests: &[Request]) -> Result<Vec<Answer>, Failed> {
        let (mut places, mut at, mut current) = (Vec::new(), C::MEMORY + REQUESTS, None);
        for request in requests {
            if current != Some(request.space) {
                current = Some(request.space);
                put(&mut self.memory, at, [3, self.spaces[request.space].tree.root, 0]);
                at += REQUEST;
            }
            put(&mut self.memory, at, request.words());
            places.push(at);
            at += REQUEST;
        }
        put(&mut self.memory, at, [0; 3]);
        assert!(at < C::MEMORY + REQUESTS_END, "too many requests");
        C::run(&mut self.memory, self.spaces[0].tree.root)?;
        let answer = |(request, at): (&Request, u64)| self.answer(*request, at);
        Ok(requests.iter().zip(places).map(answer).collect())
    }

    fn answer(&self, request: Request, at: u64) -> Answer {
        let word = |index: u64| self.memory.word(at + 8 * index);
        match (word(3), request.write) {
            (0, None) => Answer::Read(word(2)),
            (0, Some(_)) => Answer::Written,
            (code, _) => Answer::Fault { code, address: word(4) },
        }
    }

    /// Entry by entry and run by run: where pages are, whether they may be written, and what the CPU has
    /// marked.
    fn check_entries(&self, space: usize) {
        let Space { tree, pages } = &self.spaces[space];
        let entries = tree.load::<C::Format>(&self.memory);
        for (at, (entry, page)) in entries.iter().zip(pages).enumerate() {
            let found = entry.is_present().then(|| Page {
                frame: entry.frame(),
                pinned: page.is_some_and(|page| page.pinned),
                writable: entry.is_writable(),
                dirty: entry.is_dirty(),
                accessed: entry.is_accessed(),
            });
            assert_eq!(found, *page, "entry {at} of address space {space}: {entry:?}");
        }
        let mut at = 0;
        while at < entries.len() {
            at += check_run(&entries[at..], &pages[at..]);
        }
    }
}

/// The flags of the run that begins here are those of its pages. Returns its length, 1 if there is none.
fn check_run<F: Format>(entries: &[Entry<F>], pages: &[Option<Page>]) -> usize {
    let run = run_length(entries, Policy::default());
    let any = |has: fn(&Page) -> bool| pages[..run.len].iter().flatten().any(has);
    assert_eq!(run.any_writable, any(|page| page.writable));
    assert_eq!(run.any_dirty, any(|page| page.dirty));
    assert_eq!(run.any_accessed, any(|page| page.accessed));
    run.len.max(1)
}

fn put(memory: &mut Memory, at: u64, [what, address, value]: [u64; 3]) {
    for (place, word) in (at..).step_by(8).zip([what, address, value, 0, 0]) {
        memory.set_word(place, word);
    }
}
