//! The mappings of a process, by `/proc/PID/smaps`.

use std::fs;
use std::io;
use std::ops::Range;

/// A mapping of a VMM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mapping {
    /// Its addresses.
    pub addresses: Range<u64>,
    /// Bytes of its pages.
    pub page: u64,
    /// True if writes are seen by this process only.
    pub is_private: bool,
    /// True if it shows no file; mappings of hugetlbfs always show one.
    pub is_anonymous: bool,
    /// `VmFlags`, of two letters each.
    pub flags: Vec<String>,
}

impl Mapping {
    /// Returns whether it has one of `VmFlags`.
    #[must_use]
    pub(crate) fn has(&self, flag: &str) -> bool {
        self.flags.iter().any(|has| has == flag)
    }

    /// Returns whether a userfaultfd serves first accesses there.
    #[must_use]
    pub(crate) fn is_served(&self) -> bool {
        self.has("um")
    }

    /// Returns whether a userfaultfd serves writes there. A checkpoint asks for that, and no pager does.
    #[must_use]
    pub(crate) fn is_protected(&self) -> bool {
        self.has("uw")
    }

    /// Returns whether its pages are of hugetlbfs.
    #[must_use]
    pub(crate) fn is_hugetlb(&self) -> bool {
        self.has("ht")
    }

    /// All of a process, ascending.
    ///
    /// # Errors
    /// The process has ended, or the right to look at it is missing.
    pub(crate) fn of_process(pid: i32) -> io::Result<Vec<Self>> {
        // Names of files in there may be any bytes.
        let text = fs::read(format!("/proc/{pid}/smaps"))?;
        Ok(Self::parse(&String::from_utf8_lossy(&text)))
    }

    /// All in the text of `smaps`.
    #[must_use]
    pub(crate) fn parse(smaps: &str) -> Vec<Self> {
        let mut found: Vec<Self> = Vec::new();
        for line in smaps.lines() {
            if let Some(mapping) = Self::of_first_line(line) {
                found.push(mapping);
            } else if let Some(last) = found.last_mut() {
                last.read_line(line);
            }
        }
        found
    }

    /// `START-END PERMISSIONS OFFSET DEVICE INODE NAME`.
    fn of_first_line(line: &str) -> Option<Self> {
        let mut words = line.split_ascii_whitespace();
        let (start, end) = words.next()?.split_once('-')?;
        let number = |text| u64::from_str_radix(text, 16).ok();
        let addresses = number(start)?..number(end)?;
        let is_private = words.next()?.ends_with('p');
        let is_anonymous = words.nth(2)? == "0";
        Some(Self { addresses, is_private, is_anonymous, ..Self::default() })
    }

    fn read_line(&mut self, line: &str) {
        if let Some(flags) = line.strip_prefix("VmFlags:") {
            self.flags = flags.split_ascii_whitespace().map(str::to_owned).collect();
        } else if let Some(size) = line.strip_prefix("KernelPageSize:") {
            let kib = size.trim().trim_end_matches("kB").trim().parse::<u64>();
            self.page = kib.unwrap_or(0) << 10;
        }
    }
}
