//! Files that are warmed, and what other programs do to them meanwhile.
//!
//! Whether a block of 2 MiB is free is a matter of the machine, and whether the cache can have one of the file system.
//! [`huge`] accepts those two reasons, and no other, for units that stay small.

use std::cell::Cell;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;

use hugekit_bulk::Cancel;
use hugekit_sys::page_cache::{self, CacheMapping};
use hugekit_sys::{ErrorKind, HUGE_PAGE_BYTES};
use hugekit_testing::processes::Killed;
use hugekit_testing::trials::skipped;
use hugekit_warm::{
    FileUsers, WarmError, WarmMode, WarmOptions, WarmReport, Warmed, Warmer, WhySmall, warm,
};

const UNIT: usize = HUGE_PAGE_BYTES;

/// Units of most files here, and bytes behind them.
const UNITS: usize = 4;
const REST: usize = 5000;

/// A folder on a disk: the system's for temporary files may be a tmpfs.
fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// Writes a file by pieces of 4 KiB, so that it is in the cache on small pages.
fn write_small(path: &Path, bytes: usize) -> File {
    let file = File::options().read(true).write(true).create(true).truncate(true).open(path);
    let file = file.unwrap();
    for at in (0..bytes).step_by(4096) {
        file.write_all_at(&[at as u8 / 16 + 1; 4096][..4096.min(bytes - at)], at as u64).unwrap();
    }
    file
}

/// A folder with a small file in it that is on the disk.
fn small() -> (tempfile::TempDir, PathBuf, File) {
    let folder = folder();
    let path = folder.path().join("file");
    let file = write_small(&path, UNITS * UNIT + REST);
    file.sync_all().unwrap();
    (folder, path, file)
}

fn options(mode: WarmMode) -> WarmOptions {
    WarmOptions { mode, ..WarmOptions::default() }
}

/// One unit at a time, so that something can happen in between.
fn unit_by_unit() -> WarmOptions {
    WarmOptions { window: 1.try_into().unwrap(), ..WarmOptions::default() }
}

fn check(path: &Path) -> WarmReport {
    Warmer::new(options(WarmMode::Check)).run(path).unwrap().report
}

/// Returns whether all units are huge. If not, memory is fragmented, or this file system cannot.
fn huge(report: &WarmReport) -> bool {
    match report.left.as_ref().map(|left| &left.why) {
        None => true,
        Some(why @ (WhySmall::Fragmented { .. } | WhySmall::FileSystem { .. })) => {
            skipped(why);
            false
        }
        Some(why) => panic!("{why}"),
    }
}

/// The pages of the first bytes that the cache holds.
fn cached(file: &File, bytes: usize) -> usize {
    CacheMapping::new(file, 0, bytes).unwrap().cached_pages(0..bytes).unwrap()
}

fn drop_cache(file: &File) {
    file.sync_all().unwrap();
    page_cache::drop_clean(file, &(0..1 << 40)).unwrap();
}

/// Maps the file of the environment until the other end of standard input is closed. Other tests start it.
#[test]
fn another_process() {
    let Some(path) = std::env::var_os("HUGEKIT_TEST_MAPS") else { return };
    let file = File::open(path).unwrap();
    let len = file.metadata().unwrap().len() as usize / UNIT * UNIT;
    let mapping = CacheMapping::new(&file, 0, len).unwrap();
    let touched = std::env::var("HUGEKIT_TEST_TOUCHES").map_or(len, |text| text.parse().unwrap());
    mapping.read_nothing_ahead(0..len).unwrap();
    mapping.populate(0..touched).unwrap();
    let maps = fs::read_to_string("/proc/self/smaps").unwrap();
    let of_file = maps.split_once(&format!("{:x}-", mapping.address())).unwrap().1;
    let figure = of_file.lines().find_map(|line| line.strip_prefix("FilePmdMapped:")).unwrap();
    println!("huge:{}", figure.trim().strip_suffix(" kB").unwrap());
    std::io::stdin().read_line(&mut String::new()).unwrap();
}

/// A process that maps a file and has touched its first bytes, and the bytes that it maps by huge page tables.
fn map_elsewhere(path: &Path, touched: usize) -> (Killed, usize) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "another_process", "--nocapture"]).env("HUGEKIT_TEST_MAPS", path);
    command.env("HUGEKIT_TEST_TOUCHES", touched.to_string());
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.as_mut().unwrap()).lines().map(Result::unwrap);
    let huge = lines.find_map(|line| Some(line.split_once("huge:")?.1.parse::<usize>().unwrap()));
    (Killed(child), huge.unwrap() << 10)
}

#[test]
fn small_file_is_made_huge_for_every_process_and_keeps_its_bytes() {
    let (_folder, path, file) = small();
    let bytes = fs::read(&path).unwrap();
    let before = check(&path);
    assert_eq!((before.huge(), before.units(), before.holes), (0, UNITS as u64, 0));
    let why = before.left.unwrap().why;
    assert_eq!(why, WhySmall::NotMade { on_small_pages: UNITS as u64, not_in_memory: 0 });
    let report = warm(&path).unwrap();
    assert_eq!((report.already_huge, report.units()), (0, UNITS as u64));
    assert_eq!(fs::read(&path).unwrap(), bytes);
    // The bytes behind the last unit, too.
    let all = (UNITS * UNIT + REST).next_multiple_of(4096);
    assert_eq!(cached(&file, all), all / 4096);
    if huge(&report) {
        assert_eq!(map_elsewhere(&path, UNITS * UNIT).1, UNITS * UNIT);
        let again = warm(&path).unwrap();
        assert_eq!((again.already_huge, again.made_huge), (UNITS as u64, 0));
        assert!(check(&path).is_warm());
    }
}

#[test]
fn check_reads_and_drops_nothing() {
    let (_folder, path, file) = small();
    assert!(!check(&path).is_warm());
    let all = UNITS * UNIT;
    assert_eq!(cached(&file, all), all / 4096);
    drop_cache(&file);
    let before = cached(&file, all);
    let found = check(&path);
    assert_eq!(cached(&file, all), before);
    if before == 0 {
        let why = found.left.unwrap().why;
        assert_eq!(why, WhySmall::NotMade { on_small_pages: 0, not_in_memory: UNITS as u64 });
    }
    // A call that makes them huge reads all of it, and the bytes behind the last unit.
    huge(&warm(&path).unwrap());
    let all = (UNITS * UNIT + REST).next_multiple_of(4096);
    assert_eq!(cached(&file, all), all / 4096);
}

#[test]
fn holes_stay_holes_unless_they_are_to_be_filled() {
    let folder = folder();
    let path = folder.path().join("sparse");
    let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    file.set_len(12 * UNIT as u64).unwrap();
    // Each hole is behind data and before it, so that a read that goes on would fill it.
    for unit in [1, 2, 7, 8, 11] {
        file.write_all_at(&[unit; 4096], u64::from(unit) * UNIT as u64 + 4096).unwrap();
    }
    file.sync_all().unwrap();
    let data = 5;
    let report = warm(&path).unwrap();
    assert_eq!((report.units(), report.holes), (data, 7));
    huge(&report);
    assert!(cached(&file, 12 * UNIT) <= 5 * UNIT / 4096, "{}", cached(&file, 12 * UNIT));
    let kept = Warmer::new(options(WarmMode::Keep)).run(&path).unwrap();
    assert!(cached(&file, 12 * UNIT) <= 5 * UNIT / 4096, "{}", cached(&file, 12 * UNIT));
    drop(kept);
    let fill = WarmOptions { fill_holes: true, ..WarmOptions::default() };
    let filled = Warmer::new(fill).run(&path).unwrap().report;
    assert_eq!((filled.units(), filled.holes), (12, 0));
    assert_eq!(cached(&file, 12 * UNIT), 12 * UNIT / 4096);
    assert!(file.metadata().unwrap().len() == 12 * UNIT as u64);
}

#[test]
fn bytes_behind_the_last_unit_are_read_unless_they_are_a_hole() {
    for has_data in [true, false] {
        let folder = folder();
        let path = folder.path().join("rest");
        let file = write_small(&path, UNIT);
        // A hole before them, so that no read of the first unit comes to them.
        file.set_len(40 * UNIT as u64 + 5000).unwrap();
        if has_data {
            file.write_all_at(&[1; 5000], 40 * UNIT as u64).unwrap();
        }
        drop_cache(&file);
        let report = warm(&path).unwrap();
        assert_eq!((report.units(), report.holes), (1, 39));
        let rest = CacheMapping::new(&file, 40 * UNIT as u64, 8192).unwrap();
        assert_eq!(rest.cached_pages(0..8192), Ok(if has_data { 2 } else { 0 }));
    }
}

#[test]
fn file_that_is_not_written_back_yet_loses_no_byte() {
    let folder = folder();
    let path = folder.path().join("dirty");
    write_small(&path, UNITS * UNIT);
    let bytes = fs::read(&path).unwrap();
    huge(&warm(&path).unwrap());
    assert_eq!(fs::read(&path).unwrap(), bytes);
}

#[test]
fn file_mapped_on_small_pages_stays_small_and_its_process_is_named_before() {
    let (_folder, path, file) = small();
    // A program that has touched one unit holds that one only; the others are dropped after it is named.
    let touched = UNIT;
    let (mut holder, held_huge) = map_elsewhere(&path, touched);
    assert_eq!(held_huge, 0);
    let pid = holder.id() as i32;
    let told = Mutex::new(Vec::new());
    let tell = |users: &FileUsers| {
        assert_eq!(cached(&file, UNITS * UNIT), UNITS * UNIT / 4096, "dropped already");
        told.lock().unwrap().extend(users.pids.clone());
    };
    let report = Warmer::new(WarmOptions::default()).before_drop(&tell).run(&path).unwrap().report;
    assert_eq!(*told.lock().unwrap(), [pid]);
    match report.left.map(|left| (left.units.get(), left.why)) {
        Some((units, WhySmall::Mapped(users))) => {
            assert_eq!(users.pids, [pid]);
            assert!(units >= (touched / UNIT) as u64);
        }
        // Linux 7.2 collapses them where they are.
        None => skipped("this kernel collapses mapped files"),
        Some((_, why)) => panic!("{why}"),
    }
    // Nothing is missing.
    assert_eq!(cached(&file, UNITS * UNIT), UNITS * UNIT / 4096);
    drop(holder.stdin.take());
    holder.wait().unwrap();
    huge(&warm(&path).unwrap());
}

/// Pages that this process itself has mapped are not those of another one.
#[test]
fn file_whose_pages_stay_for_another_reason_is_busy() {
    let (_folder, path, file) = small();
    let own = CacheMapping::new(&file, 0, UNITS * UNIT).unwrap();
    own.read_nothing_ahead(0..UNITS * UNIT).unwrap();
    // One page of each unit: the others are dropped, and have to come back.
    (0..UNITS).for_each(|unit| own.populate(unit * UNIT..unit * UNIT + 4096).unwrap());
    let report = warm(&path).unwrap();
    assert_eq!(cached(&file, UNITS * UNIT), UNITS * UNIT / 4096);
    match report.left.map(|left| left.why) {
        Some(WhySmall::Busy) => {}
        None => skipped("this kernel collapses mapped files"),
        Some(why) => panic!("{why}"),
    }
}

/// Warms a file, unit by unit, and does something after the first one.
fn disturbed(path: &Path, disturb: impl Fn() + Sync) -> Result<Warmed, WarmError> {
    let is_first = Mutex::new(Cell::new(true));
    let progress = |_: usize, _: usize| {
        if is_first.lock().unwrap().replace(false) {
            disturb();
        }
    };
    let warmed = Warmer::new(unit_by_unit()).progress(&progress).run(path);
    assert!(!is_first.lock().unwrap().get(), "nothing was disturbed");
    warmed
}

#[test]
fn file_that_is_truncated_meanwhile_is_an_error_with_figures() {
    for left in [0, 5000, UNIT + 5000] {
        let (_folder, path, file) = small();
        let truncated = disturbed(&path, || file.set_len(left as u64).unwrap()).unwrap_err();
        match truncated {
            WarmError::Truncated { had, has } => {
                assert_eq!((had, has), ((UNITS * UNIT + REST) as u64, left as u64));
            }
            other => panic!("{other}"),
        }
        assert_eq!(truncated.kind(), ErrorKind::Conflict);
    }
}

#[test]
fn file_that_is_rewritten_meanwhile_keeps_what_was_written() {
    let (_folder, path, file) = small();
    let new = vec![0xee; UNITS * UNIT + REST];
    huge(&disturbed(&path, || file.write_all_at(&new, 0).unwrap()).unwrap().report);
    assert_eq!(fs::read(&path).unwrap(), new);
    drop_cache(&file);
    assert_eq!(fs::read(&path).unwrap(), new);
}

#[test]
fn file_that_is_replaced_or_removed_meanwhile_is_an_error() {
    let (folder, path, _file) = small();
    let other = folder.path().join("other");
    write_small(&other, UNIT);
    let replaced = disturbed(&path, || fs::rename(&other, &path).unwrap()).unwrap_err();
    assert!(matches!(replaced, WarmError::Replaced), "{replaced}");
    let (_folder, path, _file) = small();
    let removed = disturbed(&path, || fs::remove_file(&path).unwrap()).unwrap_err();
    assert!(matches!(removed, WarmError::Replaced), "{removed}");
}

#[test]
fn cancelled_call_leaves_all_of_the_file_in_the_cache() {
    let (_folder, path, file) = small();
    let cancel = Cancel::new();
    let progress = |_: usize, _: usize| cancel.cancel();
    let warmer = Warmer::new(unit_by_unit()).progress(&progress).cancel(&cancel);
    match warmer.run(&path).unwrap_err() {
        WarmError::Cancelled { huge, units } => assert!(huge <= 1 && units == UNITS as u64),
        other => panic!("{other}"),
    }
    assert_eq!(cached(&file, UNITS * UNIT), UNITS * UNIT / 4096);
    // Before anything is looked at.
    assert!(matches!(warmer.run(&path).unwrap_err(), WarmError::Cancelled { huge: 0, .. }));
}

#[test]
fn progress_ascends_to_the_bytes_of_all_units() {
    let (_folder, path, _file) = small();
    let told = Mutex::new(Vec::new());
    let progress = |done: usize, all: usize| told.lock().unwrap().push((done, all));
    let report = Warmer::new(unit_by_unit()).progress(&progress).run(&path).unwrap().report;
    let expected: Vec<_> = (1..=UNITS).map(|unit| (unit * UNIT, UNITS * UNIT)).collect();
    if huge(&report) {
        assert_eq!(*told.lock().unwrap(), expected);
    }
}

#[test]
fn kept_file_stays_when_its_cache_is_dropped_and_goes_with_its_lock() {
    let (_folder, path, file) = small();
    let Warmed { report, lock } = match Warmer::new(options(WarmMode::Keep)).run(&path) {
        Ok(warmed) => warmed,
        Err(WarmError::LockLimit { needed, limit }) => {
            assert!(needed == (UNITS * UNIT) as u64 && limit < needed);
            return skipped("this process may not lock memory");
        }
        Err(other) => panic!("{other}"),
    };
    huge(&report);
    drop_cache(&file);
    assert_eq!(cached(&file, UNITS * UNIT), UNITS * UNIT / 4096);
    assert!(lock.is_some());
    drop(lock);
    drop_cache(&file);
    if hugekit_sys::memfd::huge_page(&file).unwrap().is_none() {
        assert_eq!(cached(&file, UNITS * UNIT), 0);
    }
    assert!(Warmer::new(WarmOptions::default()).run(&path).unwrap().lock.is_none());
}

#[test]
fn what_is_no_file_of_a_unit_is_refused_at_once() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    rustix::fs::mkfifoat(rustix::fs::CWD, at("fifo"), 0o600.into()).unwrap();
    fs::write(at("short"), vec![1; UNIT - 1]).unwrap();
    File::create(at("empty")).unwrap();
    File::create(at("hole")).unwrap().set_len(2 * UNIT as u64).unwrap();
    let refused = |path: &Path| {
        let error = warm(path).unwrap_err();
        assert_eq!(
            error.kind(),
            Warmer::new(options(WarmMode::Check)).run(path).unwrap_err().kind()
        );
        error
    };
    for path in [at("fifo"), folder.path().to_owned(), "/dev/zero".into(), "/dev/tty".into()] {
        let error = refused(&path);
        assert!(matches!(error, WarmError::Open(_)), "{error}");
    }
    assert!(matches!(refused(&at("nothing")), WarmError::Open(_)));
    assert!(
        matches!(refused(&at("short")), WarmError::TooSmall { bytes } if bytes == UNIT as u64 - 1)
    );
    assert!(matches!(refused(&at("empty")), WarmError::TooSmall { bytes: 0 }));
    let hole = refused(&at("hole"));
    assert!(matches!(hole, WarmError::NoData { holes: 2 }), "{hole}");
    assert!(hole.remedy().unwrap().contains("--fill-holes"));
}

#[test]
fn file_larger_than_memory_is_refused_with_figures() {
    let folder = folder();
    let path = folder.path().join("endless");
    let mut file = File::create(&path).unwrap();
    file.write_all(&[1; 4096]).unwrap();
    // The longest file of ext4 with blocks of 4 KiB; others may be longer.
    let longest = [1 << 62, 15 << 40].into_iter().find(|&bytes| file.set_len(bytes).is_ok());
    let fill = WarmOptions { fill_holes: true, ..WarmOptions::default() };
    match Warmer::new(fill).run(&path).unwrap_err() {
        WarmError::NoMemory { needed, available } => {
            assert_eq!(needed, longest.unwrap() / UNIT as u64 * UNIT as u64);
            assert!(available.bytes < needed);
        }
        other => panic!("{other}"),
    }
    // Its holes are nothing.
    assert_eq!(warm(&path).unwrap().units(), 1);
}

#[test]
fn options_are_the_defaults_where_json_has_none() {
    let parsed: WarmOptions = serde_json::from_str(r#"{"mode": "check", "rounds": 2}"#).unwrap();
    assert_eq!(parsed.rounds.get(), 2);
    assert_eq!(parsed, WarmOptions { rounds: parsed.rounds, ..options(WarmMode::Check) });
    for wrong in [r#"{"rounds": 0}"#, r#"{"window": 0}"#, r#"{"mode": "hold"}"#, r#"{"no": 1}"#] {
        assert!(serde_json::from_str::<WarmOptions>(wrong).is_err(), "{wrong}");
    }
}
