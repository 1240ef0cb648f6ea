//! Packed VMs: every byte is shown from a layout that nothing is unpacked of, with deltas and with a working set.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use hugekit_delta::Chain;
use hugekit_guests::Request;
use hugekit_testing::trials::{self, Checks};
use hugekit_vm::checkpoint::state_of;
use hugekit_vm::oci::{PackOptions, pack};
use libtest_mimic::Trial;

use crate::fixture::Fixture;
use crate::memory_file::MIB;
use crate::pager_process::{LONGEST_WAIT, Options};

const LEN: u64 = 32 * MIB + 12288;

const CHECKS: Checks = &[
    ("packed::every_byte_is_shown_on_demand_and_ahead", every_byte),
    ("packed::every_byte_of_deltas_and_a_working_set_is_shown", every_byte_of_deltas),
    ("packed::every_byte_is_shown_after_a_kill", after_a_kill),
    ("packed::working_set_of_the_layout_is_not_recorded_again", set_of_the_layout),
    ("packed::vm_of_a_layout_without_a_set_records_one", set_beside_the_layout),
    ("packed::blob_that_is_changed_hangs_no_vm", changed_blob),
];

pub(crate) fn trials() -> Vec<Trial> {
    trials::trials(CHECKS, None)
}

/// How the memory is packed.
#[derive(Clone, Copy, Default)]
struct Way {
    /// The memory file is another one, and a delta leads to the pattern.
    delta: bool,
    set: bool,
}

fn fixture(way: Way, change: impl FnOnce(Options) -> Options) -> Fixture {
    Fixture::with(LEN, |options| {
        let memory = packed(&options.memory, way);
        change(Options { memory, packed: true, ..options })
    })
}

/// Packs a memory file, and moves it away. Returns the layout.
fn packed(memory: &Path, way: Way) -> PathBuf {
    let folder = memory.parent().unwrap();
    let (saved, layout) = (folder.join("saved"), folder.join("layout"));
    fs::create_dir(&saved).unwrap();
    fs::write(saved.join("vmstate"), "state").unwrap();
    let base = saved.join("memory");
    fs::rename(memory, &base).unwrap();
    let deltas = if way.delta { vec![delta(folder, &base)] } else { Vec::new() };
    let options = PackOptions { deltas, ..PackOptions::of_saved(&saved, layout.clone()) };
    if way.set {
        record(&options);
    }
    pack(&options, &|_, _| ()).unwrap();
    fs::remove_dir_all(saved).unwrap();
    layout
}

/// Changes the memory file, and makes a delta that leads back to the bytes that it had.
fn delta(folder: &Path, base: &Path) -> PathBuf {
    let bytes = fs::read(base).unwrap();
    let file = File::options().write(true).open(base).unwrap();
    // Data where zeroes follow, zeroes where data follows, and odd places.
    file.write_all_at(&vec![0; 2 * MIB as usize], MIB).unwrap();
    file.write_all_at(&vec![5; MIB as usize], LEN / 2).unwrap();
    file.write_all_at(&[6; 4096], 5 * MIB + 8192).unwrap();
    let saved = folder.join("saved-1");
    fs::create_dir(&saved).unwrap();
    fs::write(saved.join("vmstate"), "later state").unwrap();
    let mut chain =
        Chain::resume_raw(&File::open(base).unwrap(), state_of(base).unwrap(), []).unwrap();
    let delta = File::create_new(saved.join("memory.delta")).unwrap();
    let mut saving = chain.save(&delta).unwrap();
    saving.write_all(&bytes).unwrap();
    saving.finish().unwrap();
    saved
}

/// Parts that begin and end within chunks.
fn record(options: &PackOptions) {
    use std::os::unix::fs::MetadataExt;
    let version = |path: PathBuf| {
        let found = fs::metadata(path).unwrap();
        ((found.mtime(), found.mtime_nsec()), found.len())
    };
    let deltas = options.deltas.iter().map(|folder| folder.join("memory.delta"));
    let of: Vec<_> = [options.memory.clone()].into_iter().chain(deltas).map(version).collect();
    let ranges =
        [(4096, 8192), (2 * MIB, 4 * MIB + 4096), (LEN / 2, LEN / 2 + MIB), (LEN - 4096, LEN)];
    let set = serde_json::json!({"version": 2, "length": LEN, "of": of, "ranges": ranges});
    let path = options.memory.with_file_name("memory.working-set");
    fs::write(path, set.to_string()).unwrap();
}

fn every_byte() {
    for around in [4096, 2 * MIB] {
        let on_demand = |options| Options { prefetch: false, around, ..options };
        let fixture = fixture(Way::default(), on_demand);
        fixture.check(&mut fixture.vm_of(&[5 * MIB + 4096, LEN - 5 * MIB - 4096]), None);
    }
    let fixture = fixture(Way::default(), |options| options);
    let mut vm = fixture.vm();
    fixture.pager.await_line("left to the kernel");
    fixture.check(&mut vm, None);
}

fn every_byte_of_deltas() {
    for set in [false, true] {
        for prefetch in [false, true] {
            let fixture =
                fixture(Way { delta: true, set }, |options| Options { prefetch, ..options });
            let mut vm = fixture.vm();
            if prefetch {
                fixture.pager.await_line("left to the kernel");
            }
            fixture.check(&mut vm, None);
        }
    }
}

fn after_a_kill() {
    let mut fixture =
        fixture(Way { delta: true, set: true }, |options| Options { prefetch: false, ..options });
    let mut vm = fixture.vm();
    vm.serial.ask(Request::Touch { start: 2 * MIB, len: 8 * MIB }).unwrap();
    fixture.pager.kill();
    fixture.start_next();
    fixture.check(&mut vm, None);
}

fn set_of_the_layout() {
    let fixture = fixture(Way { delta: false, set: true }, |options| options);
    let mut vm = fixture.vm();
    fixture.pager.await_line("left to the kernel");
    assert!(!fixture.pager.log().contains("recorded"), "{}", fixture.pager.log());
    fixture.check(&mut vm, None);
}

fn set_beside_the_layout() {
    let fixture = fixture(Way::default(), |options| options);
    let _vm = fixture.vm();
    fixture.pager.await_line("recorded");
    fixture.pager.await_line("left to the kernel");
    assert!(fixture.folder().join("layout.working-set").exists());
    let started = fixture.pager.log().len();
    let mut vm = fixture.vm();
    fixture.pager.await_line_behind(started, "left to the kernel");
    assert!(!fixture.pager.log()[started..].contains("recorded"));
    fixture.check(&mut vm, None);
}

/// The largest blob has the memory.
fn changed_blob() {
    let fixture = fixture(Way::default(), |options| Options { prefetch: false, ..options });
    let mut vm = fixture.vm();
    fixture.pager.await_line("serving");
    let blobs = fs::read_dir(fixture.folder().join("layout/blobs/sha256")).unwrap();
    let blobs = blobs.map(|entry| entry.unwrap().path());
    let blob = blobs.max_by_key(|path| fs::metadata(path).unwrap().len()).unwrap();
    let len = fs::metadata(&blob).unwrap().len();
    let file = File::options().write(true).open(&blob).unwrap();
    file.write_all_at(&vec![7; len as usize], 0).unwrap();
    assert!(vm.serial.ask(Request::Touch { start: 0, len: LEN }).is_err(), "the VM goes on");
    let ending = vm.ending_within(LONGEST_WAIT).unwrap();
    assert!(ending.is_some_and(|status| status.code().is_none()), "{ending:?}");
    fixture.pager.await_line("does not decompress");
    // A VM that connects now finds a file that was written.
    assert!(crate::refused::vm(&fixture).contains("was written to"));
}
