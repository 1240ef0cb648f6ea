//! The guest's memory: 16 MiB from a CPU's own first address on. The lowest and the highest 2 MiB are
//! left to what the machine itself puts there.

use std::fs::File;
use std::io::{self, Read, Write};
use std::ops::Range;

pub(crate) const PAGE: u64 = 4096;

/// Bytes of the guest's memory.
pub(crate) const BYTES: u64 = 16 << 20;

/// The program's part: its instructions, its requests, tables and whatever else the CPU needs. All of
/// it is mapped to itself in every address space.
pub(crate) const PROGRAM: Range<u64> = 2 << 20..4 << 20;

/// Pages that address spaces map.
pub(crate) const DATA: Range<u64> = 4 << 20..12 << 20;

/// Pages for copies.
pub(crate) const COPIES: Range<u64> = 12 << 20..14 << 20;

/// Aligned as KVM wants it.
#[derive(Clone, PartialEq, Eq)]
#[repr(C, align(4096))]
struct Page([u8; PAGE as usize]);

/// Words at the addresses that the guest has for them.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Memory {
    first: u64,
    pages: Vec<Page>,
    /// The next page of the program's part that nothing uses.
    unused: u64,
}

impl Memory {
    /// Zeroes from address `first` on; the program's part is used up to `unused`.
    pub(crate) fn new(first: u64, unused: u64) -> Self {
        let pages = vec![Page([0; PAGE as usize]); (BYTES / PAGE) as usize];
        Self { first, pages, unused: first + unused }
    }

    /// A page of the program's part, for the CPU's own use.
    pub(crate) fn take_page(&mut self) -> u64 {
        let page = self.unused;
        self.unused += PAGE;
        assert!(self.unused <= self.first + PROGRAM.end, "the program's part is full");
        page
    }

    pub(crate) fn word(&self, address: u64) -> u64 {
        let (page, at) = self.place(address);
        let bytes = &self.pages[page].0[at..at + 8];
        u64::from_le_bytes(bytes.try_into().expect("eight bytes"))
    }

    pub(crate) fn set_word(&mut self, address: u64, word: u64) {
        self.write(address, &word.to_le_bytes());
    }

    /// Writes bytes that are in one page.
    pub(crate) fn write(&mut self, address: u64, bytes: &[u8]) {
        let (page, at) = self.place(address);
        self.pages[page].0[at..at + bytes.len()].copy_from_slice(bytes);
    }

    pub(crate) fn copy_page(&mut self, from: u64, to: u64) {
        let page = self.pages[self.place(from).0].clone();
        let (to, _) = self.place(to);
        self.pages[to] = page;
    }

    /// The first page of those that address spaces map which differs.
    pub(crate) fn first_difference(&self, other: &Self) -> Option<u64> {
        let mut pages = (DATA.start / PAGE) as usize..(COPIES.end / PAGE) as usize;
        let page = pages.find(|&page| self.pages[page] != other.pages[page])?;
        Some(self.first + page as u64 * PAGE)
    }

    fn place(&self, address: u64) -> (usize, usize) {
        let at = address.checked_sub(self.first).expect("an address of the guest's memory");
        ((at / PAGE) as usize, (at % PAGE) as usize)
    }

    #[cfg(target_arch = "x86_64")]
    pub(crate) fn as_mut_ptr(&mut self) -> *mut u8 {
        self.pages.as_mut_ptr().cast()
    }

    pub(crate) fn store(&self, mut file: &File) -> io::Result<()> {
        self.pages.iter().try_for_each(|page| file.write_all(&page.0))
    }

    pub(crate) fn load(&mut self, mut file: impl Read) -> io::Result<()> {
        self.pages.iter_mut().try_for_each(|page| file.read_exact(&mut page.0))
    }
}
