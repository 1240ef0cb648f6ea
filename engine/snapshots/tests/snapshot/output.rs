//! Snapshots that are written and copied out: where that fails, is stopped, or ends.

use std::fs::File;
use std::io::{self, Read, Write};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use hugekit::fault::FaultMode;
use hugekit::snapshot::Granule;
use hugekit::{Cancel, HUGE_PAGE_BYTES as HUGE, SnapshotError};
use hugekit_testing::racing::Stops;

use crate::child::in_a_child;
use crate::fixture::{Check, PAGE, assert_is_plain, of, of_all, words};
use crate::memory::Memory;

/// Writers put what they change where all of it is being copied, and do not once the copy has ended, however it
/// did: by then the memory may be any owner's.
fn copy_that_has_ended_is_written_no_more(fault_mode: FaultMode) {
    for granule in [Granule::Huge, Granule::Small] {
        let memory = Memory::filled(8 * HUGE, true, 7);
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            for writer in 0..2_usize {
                let (memory, stop) = (&memory, &stop);
                scope.spawn(move || {
                    let mut at = writer;
                    while !stop.load(Ordering::Relaxed) {
                        // From the end on: the copy comes from the beginning.
                        let words = memory.words();
                        words[words.len() - 1 - at % words.len()].store(7, Ordering::Relaxed);
                        at += 4099;
                    }
                });
            }
            // Also if this fails: the scope waits for the writers.
            let _stops = Stops(&stop);
            let mut copy = vec![0; memory.len()];
            for round in 0..30 {
                copy.fill(0);
                let snapshot = of(fault_mode, memory.range(), granule).unwrap();
                let cancel = Cancel::new();
                let tell = |done: usize, _: usize| match round % 3 {
                    0 if done >= 3 * HUGE => cancel.cancel(),
                    1 if done >= 3 * HUGE => {
                        std::panic::resume_unwind(Box::new("without a message"))
                    }
                    _ => {}
                };
                let copied = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                    snapshot.reader().progress(&tell).cancel(&cancel).copy_to(&mut copy)
                }));
                match (round % 3, copied) {
                    (0, Ok(Err(SnapshotError::Cancelled { .. }))) | (1, Err(_)) => {
                        assert!(words(&copy[..3 * HUGE]).all(|word| word == 7));
                    }
                    (2, Ok(Ok(stats))) => {
                        assert!(words(&copy).all(|word| word == 7));
                        assert_eq!(stats.retained, 0);
                    }
                    (_, other) => panic!("{other:?}"),
                }
                copy.fill(9);
                thread::yield_now();
                assert!(copy.iter().all(|&byte| byte == 9));
            }
        });
    }
}

struct Fails {
    after: usize,
    taken: usize,
}

impl Write for Fails {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.taken >= self.after {
            return Err(io::Error::other("as this test wants it"));
        }
        self.taken += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn write_to_a_sink_that_fails_is_an_error_with_its_cause(fault_mode: FaultMode) {
    let memory = Memory::filled(6 * HUGE, true, 7);
    let write = |writer: &mut dyn Write| {
        let failed = of_all(fault_mode, &memory).write_to(writer).unwrap_err();
        memory.words().iter().step_by(PAGE / 8).for_each(|word| word.store(7, Ordering::Relaxed));
        match failed {
            SnapshotError::Write { written, source } => (written, source),
            other => panic!("{other}"),
        }
    };
    let (written, source) = write(&mut Fails { after: 3 * HUGE, taken: 0 });
    assert_eq!((written, source.kind()), (3 * HUGE, io::ErrorKind::Other));
    let (written, source) = write(&mut File::options().write(true).open("/dev/full").unwrap());
    assert_eq!((written, source.kind()), (0, io::ErrorKind::StorageFull));
    let (read, mut pipe) = io::pipe().unwrap();
    drop(read);
    let (written, source) = write(&mut pipe);
    assert_eq!((written, source.kind()), (0, io::ErrorKind::BrokenPipe));
    assert_is_plain(&memory);
}

/// A file that may not grow beyond 3 MiB: `SIGXFSZ` is ignored in the child that this is tried in.
fn write_to_a_full_file_keeps_the_first_part(fault_mode: FaultMode) {
    let code = in_a_child(|| {
        let memory = Memory::filled(4 * HUGE, true, 7);
        let limit = libc::rlimit { rlim_cur: 3 << 20, rlim_max: 3 << 20 };
        // SAFETY: one limit is read; ignoring a signal needs no handler.
        unsafe {
            libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
            assert_eq!(libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit), 0);
        }
        let mut file = tempfile::tempfile().unwrap();
        let failed = of_all(fault_mode, &memory).write_to(&mut file).unwrap_err();
        let SnapshotError::Write { written, source } = failed else { return 1 };
        assert_eq!((written, source.kind()), (HUGE, io::ErrorKind::FileTooLarge));
        let mut kept = Vec::new();
        io::Seek::rewind(&mut file).unwrap();
        file.read_to_end(&mut kept).unwrap();
        i32::from(kept.len() != 3 << 20 || !words(&kept).all(|word| word == 7))
    });
    assert_eq!(code, 0);
}

fn copy_cancelled_by_its_progress_says_how_far_it_came(fault_mode: FaultMode) {
    let memory = Memory::filled(6 * HUGE, true, 7);
    let (told, cancel) = (Mutex::new(Vec::new()), Cancel::new());
    let progress = |done: usize, len: usize| {
        assert_eq!(len, memory.len());
        told.lock().unwrap().push(done);
        if done == 4 * HUGE {
            cancel.cancel();
        }
    };
    let mut copy = vec![0; memory.len()];
    let snapshot = of_all(fault_mode, &memory);
    let stopped =
        snapshot.reader().progress(&progress).cancel(&cancel).copy_to(&mut copy).unwrap_err();
    assert!(matches!(stopped, SnapshotError::Cancelled { bytes, .. } if bytes == 4 * HUGE));
    assert_eq!(told.into_inner().unwrap(), [HUGE, 2 * HUGE, 3 * HUGE, 4 * HUGE]);
    assert!(words(&copy[..4 * HUGE]).all(|word| word == 7));
    let differ = of_all(fault_mode, &memory).copy_to(&mut copy[1..]).unwrap_err();
    assert!(matches!(differ, SnapshotError::LengthsDiffer { .. }));
    let outside = of_all(fault_mode, &memory).read_at(usize::MAX, &mut [0; 2]).unwrap_err();
    assert!(matches!(outside, SnapshotError::OutOfRange { .. }));
}

pub(crate) const CHECKS: &[Check] = hugekit_testing::checks![
    "[nightly: threads must meet] " copy_that_has_ended_is_written_no_more,
    write_to_a_sink_that_fails_is_an_error_with_its_cause,
    write_to_a_full_file_keeps_the_first_part,
    copy_cancelled_by_its_progress_says_how_far_it_came,
];
