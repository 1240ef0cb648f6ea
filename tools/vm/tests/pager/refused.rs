//! VMs that are refused, and memory files that are changed: each VM ends, and no thread waits for ever. And working sets
//! that do not fit: every byte is there all the same.

use std::fs::{self, File, FileTimes};
use std::os::unix::fs::FileExt;
use std::time::{Duration, SystemTime};

use hugekit_guests::{Request, SmallVmm};
use hugekit_testing::trials::{self, Checks};
use libtest_mimic::Trial;
use serde_json::{Value, json};

use crate::fixture::Fixture;
use crate::memory_file::{MIB, MemoryFile};
use crate::pager_process::{LONGEST_WAIT, Options};

const LEN: u64 = 16 * MIB;

const CHECKS: Checks = &[
    ("refused::set_of_smaller_blocks_leaves_no_byte_out", set_of_smaller_blocks),
    ("refused::set_of_odd_ranges_leaves_no_byte_out", set_of_odd_ranges),
    ("refused::set_of_another_template_is_recorded_anew", set_of_another_template),
    ("refused::set_that_cannot_be_written_is_used_by_its_pager", set_that_cannot_be_written),
    ("refused::vm_of_a_file_that_was_renamed_over_ends", renamed_over),
    ("refused::vm_of_a_file_that_is_written_ends", written_in_place),
    ("refused::vm_of_a_file_without_a_name_is_served", without_a_name),
    (
        "refused::vm_of_a_file_that_was_touched_ends_when_it_is_taken_over",
        touched_before_a_take_over,
    ),
    ("refused::vm_whose_state_cannot_be_kept_ends", without_a_state_folder),
    ("refused::vms_beyond_the_limit_of_descriptors_end", beyond_the_limit),
    ("refused::vm_of_a_memory_file_that_is_too_short_ends", too_short),
    ("refused::mistake_of_the_pager_ends_one_vm", mistake),
];

pub(crate) fn trials() -> Vec<Trial> {
    trials::trials(CHECKS, None)
}

/// Starts a VM that is refused, and whose wait ends. Returns the line of the log.
pub(crate) fn vm(fixture: &Fixture) -> String {
    let before = fixture.pager.log().len();
    let vm = fixture.vm();
    ends(vm);
    fixture.pager.await_line_behind(before, "refused")
}

/// The VM ends by itself at its next access, and does not hang.
fn ends(mut vm: SmallVmm) {
    let _ = vm.serial.ask(Request::Touch { start: 0, len: 4096 });
    let ending = vm.ending_within(LONGEST_WAIT).unwrap();
    assert!(ending.is_some_and(|status| status.code().is_none()), "{ending:?}");
}

fn set_path(fixture: &Fixture) -> std::path::PathBuf {
    fixture.folder().join("memory.bin.working-set")
}

/// Replaces the ranges of the set that the pager has recorded, and starts another pager.
fn with_ranges(fixture: &mut Fixture, ranges: &Value) {
    let first = fixture.vm();
    fixture.pager.await_line("recorded");
    drop(first);
    let mut set: Value = serde_json::from_slice(&fs::read(set_path(fixture)).unwrap()).unwrap();
    set["ranges"] = ranges.clone();
    fs::write(set_path(fixture), serde_json::to_vec(&set).unwrap()).unwrap();
    fixture.pager.kill();
    fixture.start_next();
    let started = fixture.pager.log().len();
    let mut vm = fixture.vm();
    fixture.pager.await_line_behind(started, "left to the kernel");
    assert!(!fixture.pager.log()[started..].contains("recorded"), "the set is not used");
    fixture.check(&mut vm, None);
}

/// Parts of blocks of 2 MiB, as a pager records them that supplies 64 KiB for a fault.
fn set_of_smaller_blocks() {
    let range = |at: u64| json!([at * MIB + (1 << 20) - (64 << 10), at * MIB + (1 << 20)]);
    let mut fixture = Fixture::new(LEN);
    with_ranges(&mut fixture, &(1..16).step_by(2).map(range).collect());
}

fn set_of_odd_ranges() {
    let mut fixture = Fixture::new(LEN);
    with_ranges(
        &mut fixture,
        &json!([[5, 7], [4095, 4097], [3 * MIB + 1, 5 * MIB - 3], [LEN - 10, LEN]]),
    );
}

fn set_of_another_template() {
    let mut fixture = Fixture::new(LEN);
    let first = fixture.vm();
    fixture.pager.await_line("recorded");
    drop(first);
    let before = fs::read(set_path(&fixture)).unwrap();
    fixture.pager.kill();
    rebuild(&fixture);
    let started = fixture.pager.log().len();
    fixture.start_next();
    let mut vm = fixture.vm();
    fixture.pager.await_line_behind(started, "recorded");
    fixture.check(&mut vm, None);
    assert_ne!(fs::read(set_path(&fixture)).unwrap(), before);
}

/// Builds the memory file anew and renames it over the old one.
fn rebuild(fixture: &Fixture) {
    let folder = fixture.folder().join("new");
    fs::create_dir(&folder).unwrap();
    let new = MemoryFile::create(&folder, LEN);
    let later = SystemTime::now() + Duration::from_secs(1);
    let file = File::options().write(true).open(&new.path).unwrap();
    file.set_times(FileTimes::new().set_modified(later)).unwrap();
    fs::rename(&new.path, &fixture.memory.path).unwrap();
}

fn set_that_cannot_be_written() {
    let fixture = Fixture::new(LEN);
    // A folder has its name.
    fs::create_dir(set_path(&fixture)).unwrap();
    let first = fixture.vm();
    fixture.pager.await_line("name another file by --working-set");
    fixture.pager.await_line("left to the kernel");
    drop(first);
    let started = fixture.pager.log().len();
    let mut vm = fixture.vm();
    fixture.pager.await_line_behind(started, "left to the kernel");
    assert!(!fixture.pager.log()[started..].contains("working set"), "it is recorded again");
    fixture.check(&mut vm, None);
}

fn renamed_over() {
    let fixture = Fixture::on_demand(LEN);
    let mut earlier = fixture.vm();
    earlier.serial.ask(Request::Touch { start: 0, len: 4096 }).unwrap();
    rebuild(&fixture);
    let line = vm(&fixture);
    assert!(
        line.contains("is another file now") && line.contains("start the pager again"),
        "{line}"
    );
    // A VM that runs is one of the old file, which the pager has open.
    fixture.check(&mut earlier, None);
}

fn written_in_place() {
    let fixture = Fixture::on_demand(LEN);
    let mut earlier = fixture.vm();
    earlier.serial.ask(Request::Touch { start: 0, len: 4096 }).unwrap();
    let written = fs::metadata(&fixture.memory.path).unwrap().modified().unwrap();
    let file = File::options().write(true).open(&fixture.memory.path).unwrap();
    // Other bytes, and a time that is put back.
    file.write_all_at(&[7; 4096], 8 * MIB).unwrap();
    std::thread::sleep(Duration::from_millis(20));
    file.set_times(FileTimes::new().set_modified(written)).unwrap();
    assert!(earlier.serial.ask(Request::Touch { start: 8 * MIB, len: 4096 }).is_err());
    fixture.pager.await_line("was written to");
    assert!(vm(&fixture).contains("was written to"));
}

fn without_a_name() {
    let fixture = Fixture::new(LEN);
    fs::remove_file(&fixture.memory.path).unwrap();
    fixture.check(&mut fixture.vm(), None);
}

fn touched_before_a_take_over() {
    let mut fixture = Fixture::on_demand(LEN);
    let mut vm = fixture.vm();
    vm.serial.ask(Request::Touch { start: 0, len: 4096 }).unwrap();
    fixture.pager.kill();
    let later = SystemTime::now() + Duration::from_secs(1);
    let file = File::options().write(true).open(&fixture.memory.path).unwrap();
    file.set_times(FileTimes::new().set_modified(later)).unwrap();
    fixture.start_next();
    let line = fixture.pager.await_line("is not the one that the VM was restored from");
    assert!(line.contains("its accesses to memory fail") || line.contains("was ended"), "{line}");
    assert!(vm.serial.ask(Request::Touch { start: 8 * MIB, len: 4096 }).is_err());
    // The next pager says nothing of it.
    fixture.pager.kill();
    let before = fixture.pager.log().len();
    fixture.start_next();
    fixture.check(&mut fixture.vm(), None);
    assert!(!fixture.pager.log()[before..].contains("refused"));
}

fn without_a_state_folder() {
    let fixture = Fixture::new(LEN);
    fs::remove_dir_all(fixture.folder().join("pager.sock.state")).unwrap();
    assert!(vm(&fixture).contains("its state cannot be written"));
}

fn beyond_the_limit() {
    const FILES: u64 = 64;
    let fixture =
        Fixture::with(LEN, |options| Options { prefetch: false, files: Some(FILES), ..options });
    let mut served: Vec<SmallVmm> = Vec::new();
    let line = loop {
        let before = fixture.pager.log().len();
        let vm = fixture.vm();
        let line = fixture.pager.await_line_behind(before, "");
        if !line.contains("serving") {
            ends(vm);
            break line;
        }
        served.push(vm);
    };
    assert!(line.contains("ulimit -n"), "{line}");
    assert!(served.len() > 2 && served.len() < FILES as usize / 6, "{} VMs", served.len());
    for vm in &mut served {
        fixture.check(vm, None);
    }
    drop(served);
    fixture.pager.await_line("ended");
    // There is room again.
    let mut again = fixture.vm();
    fixture.check(&mut again, None);
}

fn too_short() {
    let fixture = Fixture::new(LEN);
    let before = fixture.pager.log().len();
    ends(fixture.vm_of(&[2 * LEN]));
    let line = fixture.pager.await_line_behind(before, "refused");
    assert!(line.contains("of a memory file of"), "{line}");
}

fn mistake() {
    let fixture = Fixture::with(LEN, |options| Options { errs: true, record_ms: 500, ..options });
    let mut first = fixture.vm();
    first.serial.ask(Request::Touch { start: 0, len: 4096 }).unwrap();
    fixture.pager.await_line("the pager has made a mistake");
    let ending = first.ending_within(LONGEST_WAIT).unwrap();
    assert!(ending.is_some_and(|status| status.code().is_none()), "{ending:?}");
    // Its set was written before.
    fixture.check(&mut fixture.vm(), None);
}
