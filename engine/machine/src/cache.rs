//! Cache sizes, for the choice between cached and streaming stores.
//!
//! Programs that only clear a buffer need the sizes at their first call. So the CPU itself is asked
//! if it can answer. Otherwise the files of one CPU are read into one buffer on the stack.

use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;

use super::{CpuSet, Error, Root};
use crate::cpu;
use hugekit_sys::injection::{Call, pass};

/// Sizes of the data caches of one CPU, in bytes; 0 if the machine has no such cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheSizes {
    /// The first level, for data.
    pub l1d: usize,
    /// The second level.
    pub l2: usize,
    /// The last level, whatever its number.
    pub llc: usize,
    /// The number of online CPUs that share the last level.
    pub llc_shared_by: usize,
}

impl CacheSizes {
    const NONE: Self = Self { l1d: 0, l2: 0, llc: 0, llc_shared_by: 0 };

    /// Adds a data cache of a level, which may be the last level until now. Returns true if it is.
    fn add(&mut self, last_level: &mut u32, level: u32, size: usize) -> bool {
        match level {
            1 => self.l1d = size,
            2 => self.l2 = size,
            _ => {}
        }
        let is_last = level > *last_level;
        if is_last {
            (*last_level, self.llc) = (level, size);
        }
        is_last
    }
}

/// Returns the sizes that the calling thread's CPU reports, in a tenth of the time of [`read`] if
/// no hypervisor traps the instruction. The CPU does not report the CPUs that share the last level:
/// `llc_shared_by` is 0. `None` if the CPU reports nothing.
pub fn by_cpu() -> Option<CacheSizes> {
    let (mut sizes, mut last_level) = (CacheSizes::NONE, 0);
    for (level, size) in cpu::data_caches() {
        sizes.add(&mut last_level, level, size);
    }
    (last_level > 0).then_some(sizes)
}

/// Reads the caches of the first online CPU.
///
/// # Errors
/// [`Error`] if the kernel describes no data cache (common in virtual machines on aarch64), or if a
/// file is malformed.
pub fn read(root: &Root) -> Result<CacheSizes, Error> {
    let mut directory = Directory::of_first_cpu(root)?;
    let mut sizes = CacheSizes::NONE;
    let (mut last_level, mut last_index) = (0, 0);
    for index in 0.. {
        let Some(cache) = directory.cache(index)? else { break };
        if sizes.add(&mut last_level, cache.level, cache.size) {
            last_index = index;
        }
    }
    if last_level == 0 {
        return Err(directory.nothing_found());
    }
    sizes.llc_shared_by = directory.shared_by(last_index)?;
    Ok(sizes)
}

struct Cache {
    level: u32,
    size: usize,
}

/// The `cache` directory of one CPU.
struct Directory {
    path: PathBuf,
    depth: usize,
}

impl Directory {
    fn of_first_cpu(root: &Root) -> Result<Self, Error> {
        let mut path = root.path("/sys/devices/system/cpu/cpu0/cache");
        if !path.exists() {
            let online = super::topology::online_cpus(root)?;
            let first = online.first().unwrap_or(0);
            path = root.path(format!("/sys/devices/system/cpu/cpu{first}/cache"));
        }
        let depth = path.components().count();
        Ok(Self { path, depth })
    }

    /// Returns the data or unified cache with the number `index`. Instruction caches and caches
    /// without a size have size 0.
    fn cache(&mut self, index: usize) -> Result<Option<Cache>, Error> {
        let Some(level) = self.value(index, "level", "a cache level", |text| text.parse().ok())?
        else {
            return Ok(None);
        };
        let holds_data =
            self.value(index, "type", "a cache type", |text| Some(text != "Instruction"))?;
        let size = match holds_data {
            Some(true) => self.value(index, "size", "a size such as 32K", parse_size)?.unwrap_or(0),
            _ => 0,
        };
        Ok(Some(Cache { level: if size == 0 { 0 } else { level }, size }))
    }

    fn shared_by(&mut self, index: usize) -> Result<usize, Error> {
        let cpus: Option<CpuSet> =
            self.value(index, "shared_cpu_list", "a list of CPUs", |text| text.parse().ok())?;
        Ok(cpus.map_or(1, |cpus| cpus.len().max(1)))
    }

    fn value<T>(
        &mut self,
        index: usize,
        name: &str,
        expected: &'static str,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        self.point_to(index, name);
        let mut buffer = [0; 4096];
        match read_small(&self.path, &mut buffer) {
            Ok(text) => parse(text)
                .map(Some)
                .ok_or_else(|| Error::malformed(self.path.clone(), expected, text)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(Error::Unreadable { path: self.path.clone(), source }),
        }
    }

    fn point_to(&mut self, index: usize, name: &str) {
        while self.path.components().count() > self.depth {
            self.path.pop();
        }
        self.path.push(format!("index{index}"));
        self.path.push(name);
    }

    fn nothing_found(mut self) -> Error {
        self.point_to(0, "size");
        Error::Unreadable { path: self.path, source: io::ErrorKind::NotFound.into() }
    }
}

fn read_small<'a>(path: &PathBuf, buffer: &'a mut [u8; 4096]) -> io::Result<&'a str> {
    pass(Call::Open)?;
    pass(Call::Read)?;
    let length = File::open(path)?.read(buffer)?;
    let text = std::str::from_utf8(&buffer[..length]);
    Ok(text.map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?.trim())
}

/// Parses `32K`, `8M`, or a number of bytes.
fn parse_size(text: &str) -> Option<usize> {
    let (digits, unit) = match text.as_bytes().last()? {
        b'K' => (&text[..text.len() - 1], 1 << 10),
        b'M' => (&text[..text.len() - 1], 1 << 20),
        b'G' => (&text[..text.len() - 1], 1 << 30),
        _ => (text, 1),
    };
    digits.parse::<usize>().ok()?.checked_mul(unit)
}

#[cfg(test)]
mod tests {
    use super::super::synthetic::Synthetic;
    use super::*;

    fn with_cache(machine: &Synthetic, cpu: u32, index: u32, row: [&str; 4]) {
        let directory = format!("/sys/devices/system/cpu/cpu{cpu}/cache/index{index}");
        let [level, kind, size, shared] = row;
        let files = [("level", level), ("type", kind), ("size", size), ("shared_cpu_list", shared)];
        machine.files(&directory, &files);
    }

    fn server(cpu: u32) -> Synthetic {
        let machine = Synthetic::new();
        with_cache(&machine, cpu, 0, ["1", "Data", "48K", "0,64"]);
        with_cache(&machine, cpu, 1, ["1", "Instruction", "64K", "0,64"]);
        with_cache(&machine, cpu, 2, ["2", "Unified", "2048K", "0,64"]);
        with_cache(&machine, cpu, 3, ["3", "Unified", "491520K", "0-127"]);
        machine
    }

    const SERVER: CacheSizes =
        CacheSizes { l1d: 48 << 10, l2: 2 << 20, llc: 480 << 20, llc_shared_by: 128 };

    /// Returns true if a description replaces the kernel's files (`cargo xtask on`), which are on
    /// sysfs.
    fn is_described(path: &str) -> bool {
        const SYSFS_MAGIC: u64 = 0x6265_6572;
        rustix::fs::statfs(path).is_ok_and(|found| found.f_type as u64 != SYSFS_MAGIC)
    }

    #[test]
    fn caches_of_the_cpu_are_those_of_the_kernel() {
        if is_described("/sys/devices/system/cpu/cpu0/cache") {
            return;
        }
        // Both are absent on some virtual machines.
        if let (Some(cpu), Ok(kernel)) = (by_cpu(), read(&Root::default())) {
            assert_eq!(cpu, CacheSizes { llc_shared_by: 0, ..kernel });
        }
    }

    #[test]
    fn caches_for_instructions_do_not_count() {
        assert_eq!(read(&server(0).root()).unwrap(), SERVER);
    }

    #[test]
    fn caches_with_cpu_zero_offline_are_read() {
        let machine = server(5);
        machine.file("/sys/devices/system/cpu/online", "5-7");
        assert_eq!(read(&machine.root()).unwrap(), SERVER);
    }

    #[test]
    fn caches_of_two_levels_have_the_second_as_last() {
        let machine = Synthetic::new();
        with_cache(&machine, 0, 0, ["1", "Data", "32K", "0"]);
        with_cache(&machine, 0, 1, ["2", "Unified", "1M", "0-3"]);
        let sizes = read(&machine.root()).unwrap();
        assert_eq!((sizes.l2, sizes.llc, sizes.llc_shared_by), (1 << 20, 1 << 20, 4));
    }

    #[test]
    fn cache_without_a_size_is_passed_over() {
        let machine = server(0);
        let directory = "/sys/devices/system/cpu/cpu0/cache/index4";
        machine.files(directory, &[("level", "4"), ("type", "Unified")]);
        assert_eq!(read(&machine.root()).unwrap(), SERVER);
    }

    #[test]
    fn caches_of_garbage_are_an_error_that_names_it() {
        let machine = server(0);
        with_cache(&machine, 0, 2, ["2", "Unified", "banana", "0"]);
        let message = read(&machine.root()).unwrap_err().to_string();
        assert!(message.contains("index2/size") && message.contains("banana"), "{message}");
    }

    #[test]
    fn caches_without_a_directory_are_an_error() {
        let machine = Synthetic::new();
        assert!(read(&machine.root()).unwrap_err().is_not_found());
        machine.file("/sys/devices/system/cpu/cpu0/cache/uevent", "");
        assert!(read(&machine.root()).unwrap_err().is_not_found());
    }

    #[test]
    fn cache_sizes_are_powers_of_1024() {
        assert_eq!(parse_size("512K"), Some(512 << 10));
        assert_eq!(parse_size("32M"), Some(32 << 20));
        assert_eq!(parse_size("64"), Some(64));
        assert_eq!(parse_size("K"), None);
        assert_eq!(parse_size(""), None);
    }
}
