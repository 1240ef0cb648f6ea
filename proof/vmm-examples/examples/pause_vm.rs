//! A virtual machine that is saved by deltas, killed, resumed, and cloned.
//!
//! ```sh
//! cargo run --release -p hugekit-vmm-examples --example pause_vm -- [MIB]
//! ```
//!
//! A guest computes in all of its memory, one MiB after the other, so that each number depends on all before it. While it
//! runs it is paused, as long as it takes to read its registers and to take a snapshot that leaves an epoch; what has
//! changed since the pause before is written out while it runs on. After the second pause it is killed. Guests that are
//! made of the saved states, one of the first and two of the second, have to end exactly as one that was never paused.

mod common;

#[cfg(not(target_arch = "x86_64"))]
fn main() {
    println!("skipped: the guest's program is for x86-64");
}

#[cfg(target_arch = "x86_64")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let bytes = asked_for()?;
    match kvm_ioctls::Kvm::new() {
        Ok(kvm) => pauses::run(&kvm, bytes),
        Err(error) => {
            println!("skipped: /dev/kvm cannot be opened: {error}");
            Ok(())
        }
    }
}

/// Bytes of the guest's memory, a power of two: 64 MiB unless said.
#[cfg(target_arch = "x86_64")]
fn asked_for() -> Result<usize, String> {
    let most = common::guest::MOST_MEMORY >> 20;
    let Some(word) = std::env::args().nth(1) else { return Ok(64 << 20) };
    match word.parse::<usize>() {
        Ok(mib) if mib.is_power_of_two() && (8..=most).contains(&mib) => Ok(mib << 20),
        _ => Err(format!("{word} is no power of two of MiB from 8 to {most}")),
    }
}

#[cfg(target_arch = "x86_64")]
mod pauses {
    #![allow(unsafe_code)]

    use std::error::Error;
    use std::fs::{self, File};
    use std::os::unix::thread::JoinHandleExt;
    use std::path::{Path, PathBuf};
    use std::slice;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
    use std::thread::{self, JoinHandle};
    use std::time::{Duration, Instant};

    use hugekit::Snapshot;
    use hugekit::fault::FaultMode;
    use hugekit::snapshot::{Builder, Changes, Epoch};
    use hugekit_delta::{Chain, apply};
    use kvm_bindings::kvm_regs;
    use kvm_ioctls::Kvm;
    use tempfile::TempDir;

    use crate::common::anonymous::Anonymous;
    use crate::common::computing::{ENDED, MEBIBYTE_DONE, PROGRAM, STEPS};
    use crate::common::guest::{Guest, GuestMemory, Program, Report};

    /// Mebibytes that it goes through, some of them twice.
    const PASSES: u32 = 4;

    /// The state that a guest has left: its last number, and its memory.
    type End = (u32, Anonymous);

    pub(super) fn run(kvm: &Kvm, bytes: usize) -> Result<(), Box<dyn Error>> {
        let folder = tempfile::tempdir()?;
        let program = Program::new(&PROGRAM)?;
        let expected = never_paused(kvm, &program, bytes)?;
        let Some(mut saved) = saved_twice(kvm, &program, bytes, &folder)? else { return Ok(()) };
        println!("the guest is killed");
        let first = saved.remove(0);
        let clones = [&first[..], &saved[0], &saved[0]];
        let clones = clones.map(|files| resumed(kvm, &program, bytes, files));
        for (clone, files) in clones.into_iter().zip([1, 2, 2]) {
            let (guest, took) = clone?;
            println!("a guest is made of {files} files in {}", milliseconds(took));
            same(&ended(guest)?, &expected)?;
        }
        println!("3 guests went on, and ended exactly as one that was never paused");
        Ok(())
    }

    fn new_guest(
        kvm: &Kvm,
        program: &Program,
        memory: Anonymous,
    ) -> Result<Guest<Anonymous>, Box<dyn Error>> {
        let bytes = u32::try_from(memory.bytes())?;
        let steps = (bytes >> 20) * PASSES * STEPS;
        Guest::new(kvm, memory, program, [bytes - 4, steps])
    }

    fn never_paused(kvm: &Kvm, program: &Program, bytes: usize) -> Result<End, Box<dyn Error>> {
        let begin = Instant::now();
        let end = ended(new_guest(kvm, program, Anonymous::on_huge_pages(bytes)?)?)?;
        let (mib, took) = (bytes >> 20, milliseconds(begin.elapsed()));
        println!("a guest of {mib} MiB that is never paused ends after {took}");
        Ok(end)
    }

    /// Runs a guest to its end.
    fn ended(mut guest: Guest<Anonymous>) -> Result<End, Box<dyn Error>> {
        loop {
            match guest.run()? {
                Report { at: MEBIBYTE_DONE, .. } => {}
                Report { at: ENDED, word } => return Ok((word, guest.into_memory())),
                other => return Err(format!("the guest was not to report {other:?}").into()),
            }
        }
    }

    fn same(found: &End, expected: &End) -> Result<(), String> {
        if found.0 == expected.0 && bytes_of(&found.1) == bytes_of(&expected.1) {
            Ok(())
        } else {
            Err(format!("{:#x} is the end, and {:#x} was expected", found.0, expected.0))
        }
    }

    fn bytes_of(memory: &Anonymous) -> &[u8] {
        // SAFETY: mapped as long as it is borrowed, and written only by a guest, which is gone.
        unsafe { slice::from_raw_parts(memory.address(), memory.bytes()) }
    }

    /// Saves a guest when half of its work is done, and again an eighth later. Returns the files of each state; `None` if
    /// nothing can serve the faults of a guest here.
    fn saved_twice(
        kvm: &Kvm,
        program: &Program,
        bytes: usize,
        folder: &TempDir,
    ) -> Result<Option<Vec<Vec<PathBuf>>>, Box<dyn Error>> {
        let mut chain = Chain::new(bytes as u64);
        let guest = new_guest(kvm, program, Anonymous::on_huge_pages(bytes)?)?;
        let memory = std::ptr::slice_from_raw_parts(guest.memory().address().cast_const(), bytes);
        let mebibytes = u32::try_from(bytes >> 20)? * PASSES;
        // However long a save takes, it is not at its end then.
        let least = mebibytes / 8;
        let (mut running, mut epoch) = (Running::start(guest, least), None);
        let (mut files, mut states) = (Vec::new(), Vec::new());
        for index in 0..2 {
            running.wait_until_left(mebibytes / 8 * (4 - index))?;
            let begin = Instant::now();
            let guest = running.pause()?;
            let changes = match take(memory, epoch.take()) {
                Ok(changes) => changes,
                Err(error) if index == 0 => {
                    println!("skipped: {error}");
                    return Ok(None);
                }
                Err(error) => return Err(error.into()),
            };
            let registers = guest.registers()?;
            running = Running::start(guest, least);
            println!("the guest stood still for {}", milliseconds(begin.elapsed()));
            let file = folder.path().join(format!("state-{index}"));
            epoch = Some(save(&mut chain, changes, &file)?);
            save_registers(&registers, &chain, &file)?;
            files.push(file);
            states.push(files.clone());
        }
        // Neither what it has done since nor what it is about to do is wanted.
        drop(running.pause()?);
        Ok(Some(states))
    }

    /// KVM cannot wait for a handler in place.
    fn builder() -> Builder {
        Snapshot::builder().fault_mode(FaultMode::Threaded { threads: 1 })
    }

    fn take(memory: *const [u8], before: Option<Epoch>) -> Result<Changes, hugekit::SnapshotError> {
        match before {
            // SAFETY: the guest's memory outlives the epochs; faults of KVM and of system calls are served by a thread.
            None => unsafe { builder().first_epoch(memory) },
            // SAFETY: the guest's memory outlives the epochs; faults of KVM and of system calls are served by a
            // thread.
            Some(epoch) => unsafe { builder().since(epoch) },
        }
    }

    fn save(chain: &mut Chain, changes: Changes, path: &Path) -> Result<Epoch, Box<dyn Error>> {
        let begin = Instant::now();
        let file = File::create(path)?;
        let mut saving = chain.save_changes(&file)?;
        let epoch = changes.deliver(|offset, bytes| saving.put(offset as u64, bytes))?;
        let saved = saving.finish()?;
        file.sync_all()?;
        let (kind, took) = (if saved.is_full { "all" } else { "a delta" }, begin.elapsed());
        println!(
            "{kind} of {} KiB is saved in {}, while it runs",
            saved.written >> 10,
            milliseconds(took)
        );
        Ok(epoch)
    }

    /// Beside the memory's file: the state that they belong to, and the registers, a number each.
    fn save_registers(
        registers: &kvm_regs,
        chain: &Chain,
        memory: &Path,
    ) -> Result<(), Box<dyn Error>> {
        let state = chain.state().ok_or("nothing was saved")?;
        let numbers = each(&mut { *registers }).map(|number| format!("{number:#x}\n")).concat();
        Ok(fs::write(memory.with_extension("registers"), format!("{state}\n{numbers}"))?)
    }

    /// All of them, in the order of the file.
    fn each(r: &mut kvm_regs) -> [&mut u64; 18] {
        [
            &mut r.rax,
            &mut r.rbx,
            &mut r.rcx,
            &mut r.rdx,
            &mut r.rsi,
            &mut r.rdi,
            &mut r.rsp,
            &mut r.rbp,
            &mut r.r8,
            &mut r.r9,
            &mut r.r10,
            &mut r.r11,
            &mut r.r12,
            &mut r.r13,
            &mut r.r14,
            &mut r.r15,
            &mut r.rip,
            &mut r.rflags,
        ]
    }

    fn load_registers(memory: &Path, state: &str) -> Result<kvm_regs, Box<dyn Error>> {
        let text = fs::read_to_string(memory.with_extension("registers"))?;
        let mut lines = text.lines();
        if lines.next() != Some(state) {
            return Err("the registers are those of another state".into());
        }
        let number = |line: &str| u64::from_str_radix(line.trim_start_matches("0x"), 16);
        let numbers = lines.map(number).collect::<Result<Vec<u64>, _>>()?;
        let mut registers = kvm_regs::default();
        let places = each(&mut registers);
        if numbers.len() != places.len() {
            return Err(format!("there are not {} registers", places.len()).into());
        }
        places.into_iter().zip(numbers).for_each(|(place, number)| *place = number);
        Ok(registers)
    }

    /// A guest as it was when the last of these files was written, about to go on.
    fn resumed(
        kvm: &Kvm,
        program: &Program,
        bytes: usize,
        files: &[PathBuf],
    ) -> Result<(Guest<Anonymous>, Duration), Box<dyn Error>> {
        let begin = Instant::now();
        let memory = Anonymous::on_huge_pages(bytes)?;
        // SAFETY: mapped as long as `memory` lives, and nothing else refers to it before the guest does.
        let target = unsafe { slice::from_raw_parts_mut(memory.address(), bytes) };
        let mut state = None;
        for file in files {
            state = Some(apply(&mut *target, state, &mut File::open(file)?)?);
        }
        let state = state.ok_or("no files")?.to_string();
        let mut guest = new_guest(kvm, program, memory)?;
        guest.set_registers(&load_registers(&files[files.len() - 1], &state)?)?;
        Ok((guest, begin.elapsed()))
    }

    /// A guest in a thread of its own.
    struct Running {
        thread: JoinHandle<Result<Guest<Anonymous>, String>>,
        paused: Arc<AtomicBool>,
        left: Arc<AtomicU32>,
    }

    impl Running {
        /// It waits to be paused when it has no more than `least` mebibytes before it.
        fn start(mut guest: Guest<Anonymous>, least: u32) -> Self {
            interrupt_by_signals();
            let (paused, left) =
                (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(u32::MAX)));
            let (asked, told) = (Arc::clone(&paused), Arc::clone(&left));
            let run = move || loop {
                match guest.run_until(&asked).map_err(|error| error.to_string())? {
                    None => return Ok(guest),
                    Some(Report { at: MEBIBYTE_DONE, word }) => {
                        told.store(word / STEPS, Ordering::Release);
                        while word / STEPS <= least && !asked.load(Ordering::Acquire) {
                            thread::sleep(Duration::from_micros(100));
                        }
                    }
                    Some(report) => {
                        return Err(format!("the guest was not paused in time: {report:?}"));
                    }
                }
            };
            Self { thread: thread::spawn(run), paused, left }
        }

        /// Until it has no more than so many mebibytes before it.
        fn wait_until_left(&self, mebibytes: u32) -> Result<(), Box<dyn Error>> {
            while self.left.load(Ordering::Acquire) > mebibytes {
                if self.thread.is_finished() {
                    return Err("the guest has ended too early".into());
                }
                thread::sleep(Duration::from_micros(100));
            }
            Ok(())
        }

        /// Signals interrupt it until it is between two instructions.
        fn pause(self) -> Result<Guest<Anonymous>, Box<dyn Error>> {
            self.paused.store(true, Ordering::Release);
            while !self.thread.is_finished() {
                // SAFETY: the thread was not joined yet, and the signal has a handler.
                unsafe { libc::pthread_kill(self.thread.as_pthread_t(), libc::SIGUSR1) };
                thread::sleep(Duration::from_micros(50));
            }
            let guest = self.thread.join().map_err(|_| "the guest's thread panicked")?;
            Ok(guest?)
        }
    }

    /// The signal ends what KVM does, and nothing else happens.
    fn interrupt_by_signals() {
        extern "C" fn nothing(_: libc::c_int) {}
        // SAFETY: a handler that does nothing may interrupt everything.
        unsafe {
            libc::signal(libc::SIGUSR1, nothing as extern "C" fn(libc::c_int) as libc::sighandler_t)
        };
    }

    fn milliseconds(time: Duration) -> String {
        format!("{:.2} ms", time.as_secs_f64() * 1e3)
    }
}
