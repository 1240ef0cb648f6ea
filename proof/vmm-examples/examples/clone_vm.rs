//! Virtual machines cloned from one that has started already.
//!
//! ```sh
//! cargo run --release -p hugekit-vmm-examples --example clone_vm -- [CLONES [MIB]]
//! ```
//!
//! A template guest writes all of its memory, and is stopped. Each clone gets a fork of that memory,
//! and runs in a machine of its own: it looks whether all of the
//! template's memory is there, writes the first quarter of it, and verifies what it wrote. What a clone writes
//! is copied by a handler thread as it is written; the rest stays shared. All clones live at the same time. In
//! the end the host looks whether each of them, and the template, has its own bytes and no other's.

mod common;

#[cfg(not(target_arch = "x86_64"))]
fn main() {
    println!("skipped: the guest's program is for x86-64");
}

#[cfg(target_arch = "x86_64")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let [clones, mib] = asked_for()?;
    match kvm_ioctls::Kvm::new() {
        Ok(kvm) => clones::run(&kvm, clones, mib << 20),
        Err(error) => {
            println!("skipped: /dev/kvm cannot be opened: {error}");
            Ok(())
        }
    }
}

/// Returns the number of clones, and MiB of each: a thousand of 4 MiB by default.
#[cfg(target_arch = "x86_64")]
fn asked_for() -> Result<[usize; 2], String> {
    let mut words = std::env::args().skip(1);
    let mut next = |usual: usize, most: usize, what: &str| {
        let Some(word) = words.next() else { return Ok(usual) };
        match word.parse() {
            Ok(number) if (1..=most).contains(&number) => Ok(number),
            _ => Err(format!("{word} is no number of {what} from 1 to {most}")),
        }
    };
    Ok([next(1000, 100_000, "clones")?, next(4, common::guest::MOST_MEMORY >> 20, "MiB")?])
}

#[cfg(target_arch = "x86_64")]
mod clones {
    use std::error::Error;
    use std::time::{Duration, Instant};

    use hugekit::fault::FaultMode;
    use hugekit::region::ForkError;
    use hugekit::{Pool, SharedRegion};
    use hugekit_machine::{Memory, Root};
    use kvm_ioctls::Kvm;
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    use crate::common::guest::{Guest, Program, Report};

    const PAGE: usize = 4096;

    /// A clone writes one in this many of its pages.
    const WRITTEN: u32 = 4;

    /// The offsets at which programs store their reports.
    const STARTED: u8 = 0;
    const VERIFIED: u8 = 4;
    const NOT_THE_TEMPLATES: u8 = 8;
    const NOT_AS_WRITTEN: u8 = 12;

    /// The offset behind the template's word at which a clone writes.
    const OWN: u8 = 4;

    /// Writes the complement of its address at the beginning of each of `ebx` pages.
    #[rustfmt::skip]
    const TEMPLATE: [u8; 23] = [
        0x31, 0xff,                         //        xor edi, edi
        0x89, 0xd9,                         //        mov ecx, ebx
        0x89, 0xf8,                         // write: mov eax, edi
        0xf7, 0xd0,                         //        not eax
        0x89, 0x07,                         //        mov [rdi], eax
        0x81, 0xc7, 0x00, 0x10, 0x00, 0x00, //        add edi, 4096
        0xff, 0xc9,                         //        dec ecx
        0x75, 0xf0,                         //        jnz write
        0x89, 0x56, VERIFIED,               //        mov [rsi + VERIFIED], edx   ; the run ends here
    ];

    /// Looks for the template's words in `ebx` pages, writes `edx` beside those of the first quarter, and
    /// verifies these.
    #[rustfmt::skip]
    const CLONE: [u8; 75] = [
        0x31, 0xc0,                         //         xor eax, eax
        0x89, 0x46, STARTED,                //         mov [rsi + STARTED], eax
        0x31, 0xff,                         //         xor edi, edi
        0x89, 0xd9,                         //         mov ecx, ebx
        0x89, 0xf8,                         // look:   mov eax, edi
        0xf7, 0xd0,                         //         not eax
        0x39, 0x07,                         //         cmp [rdi], eax
        0x75, 52,                           //         jne not_the_templates
        0x81, 0xc7, 0x00, 0x10, 0x00, 0x00, //         add edi, 4096
        0xff, 0xc9,                         //         dec ecx
        0x75, 0xee,                         //         jnz look
        0xc1, 0xeb, 2,                      //         shr ebx, 2
        0x31, 0xff,                         //         xor edi, edi
        0x89, 0xd9,                         //         mov ecx, ebx
        0x89, 0x57, OWN,                    // write:  mov [rdi + OWN], edx
        0x81, 0xc7, 0x00, 0x10, 0x00, 0x00, //         add edi, 4096
        0xff, 0xc9,                         //         dec ecx
        0x75, 0xf3,                         //         jnz write
        0x31, 0xff,                         //         xor edi, edi
        0x89, 0xd9,                         //         mov ecx, ebx
        0x39, 0x57, OWN,                    // verify: cmp [rdi + OWN], edx
        0x75, 16,                           //         jne not_as_written
        0x81, 0xc7, 0x00, 0x10, 0x00, 0x00, //         add edi, 4096
        0xff, 0xc9,                         //         dec ecx
        0x75, 0xf1,                         //         jnz verify
        0x89, 0x56, VERIFIED,               //         mov [rsi + VERIFIED], edx   ; the last run ends here
                                            // not_the_templates:
        0x89, 0x7e, NOT_THE_TEMPLATES,      //         mov [rsi + NOT_THE_TEMPLATES], edi
                                            // not_as_written:
        0x89, 0x7e, NOT_AS_WRITTEN,         //         mov [rsi + NOT_AS_WRITTEN], edi
    ];

    /// The steps of one clone: the fork, the machine around it, the time until its first instruction, and its work.
    const STEPS: [&str; 4] = ["fork", "machine", "first instruction", "work"];
    type StepTimes = [Duration; STEPS.len()];

    pub(super) fn run(kvm: &Kvm, wanted: usize, bytes: usize) -> Result<(), Box<dyn Error>> {
        let clones = wanted.min(most(bytes)?);
        if clones < wanted {
            println!("{clones} of {wanted} clones fit: memory, or descriptors (ulimit -n)");
        }
        let begin = Instant::now();
        let pool = Pool::builder((clones + 1) * bytes).name("clones").build()?;
        let built = begin.elapsed();
        for fallback in &pool.backing_report().fallbacks {
            println!("not on {}: {}", fallback.backing, fallback.reason);
        }
        println!("clones of {} MiB on {}", bytes >> 20, pool.backing());
        println!("pool populated in {:.2} s", built.as_secs_f64());
        let template = started_template(kvm, pool.region(bytes)?.share())?;
        // KVM cannot wait for a handler in place.
        let fork = template.fork_builder().fault_mode(FaultMode::Threaded { threads: 1 });
        let begin = Instant::now();
        let first = fork.build();
        println!("first fork, which starts the handler thread: {:.1} µs", micros(begin.elapsed()));
        if let Err(refused @ ForkError::Fault(_)) = first {
            println!("skipped: {refused}");
            return Ok(());
        }
        drop(first);
        let program = Program::new(&CLONE)?;
        let (mut guests, mut times) = (Vec::new(), Vec::new());
        for id in 1..=u32::try_from(clones)? {
            let begin = Instant::now();
            let memory = fork.build()?.share();
            let (guest, took) = start(kvm, memory, &program, id, begin)?;
            guests.push(guest);
            times.push(took);
        }
        print_times(&times);
        print_memory(&guests)?;
        for (id, guest) in (1..).zip(&guests) {
            seen_from_outside(guest.memory(), Some(id))?;
        }
        seen_from_outside(&template, None)?;
        println!("{clones} clones and the template have their own bytes, and no other's");
        Ok(())
    }

    /// Returns the number of clones for which half of the available memory, and the descriptors, suffice.
    fn most(bytes: usize) -> Result<usize, Box<dyn Error>> {
        let limit = getrlimit(Resource::Nofile);
        // Nothing in this program minds descriptors above 1024.
        setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })?;
        let limit = limit.maximum.map_or(usize::MAX, |limit| limit as usize);
        let descriptors = limit.saturating_sub(OTHER_DESCRIPTORS) / DESCRIPTORS;
        let memory = Memory::read(&Root::default())?.available as usize / 2 / bytes;
        match memory.saturating_sub(1).min(descriptors) {
            0 => Err("there is too little memory for a template and a clone".into()),
            most => Ok(most),
        }
    }

    /// A machine and its CPU; beside them the pool, the program, standard input and so on.
    const DESCRIPTORS: usize = 2;
    const OTHER_DESCRIPTORS: usize = 32;

    /// Memory as the template leaves it.
    fn started_template(kvm: &Kvm, memory: SharedRegion) -> Result<SharedRegion, Box<dyn Error>> {
        let words = [pages(&memory), 0];
        let mut guest = Guest::new(kvm, memory.clone(), &Program::new(&TEMPLATE)?, words)?;
        expect(guest.run()?, Report { at: VERIFIED, word: 0 })?;
        Ok(memory)
    }

    fn start(
        kvm: &Kvm,
        memory: SharedRegion,
        program: &Program,
        id: u32,
        begin: Instant,
    ) -> Result<(Guest<SharedRegion>, StepTimes), Box<dyn Error>> {
        let forked = Instant::now();
        let words = [pages(&memory), id];
        let mut guest = Guest::new(kvm, memory, program, words)?;
        let made = Instant::now();
        expect(guest.run()?, Report { at: STARTED, word: 0 })?;
        let started = Instant::now();
        expect(guest.run()?, Report { at: VERIFIED, word: id })?;
        let took = [forked - begin, made - forked, started - made, started.elapsed()];
        Ok((guest, took))
    }

    fn pages(memory: &SharedRegion) -> u32 {
        u32::try_from(memory.len() / PAGE).expect("a guest has less than 4 GiB")
    }

    fn expect(report: Report, expected: Report) -> Result<(), String> {
        match report {
            report if report == expected => Ok(()),
            Report { at: NOT_THE_TEMPLATES, word } => {
                Err(format!("not the template's word at {word:#x}"))
            }
            Report { at: NOT_AS_WRITTEN, word } => Err(format!("not as written at {word:#x}")),
            other => Err(format!("the guest was to report {expected:?}, not {other:?}")),
        }
    }

    fn print_times(times: &[StepTimes]) {
        println!("µs for each clone        median        max");
        let sum: Duration = times.iter().flatten().sum();
        for (step, name) in STEPS.into_iter().enumerate() {
            let mut times: Vec<Duration> = times.iter().map(|times| times[step]).collect();
            times.sort();
            let [median, max] = [times[times.len() / 2], times[times.len() - 1]].map(micros);
            println!("{name:20} {median:>10.1} {max:>10.1}");
        }
        println!("{:.2} s for all of them", sum.as_secs_f64());
    }

    fn micros(time: Duration) -> f64 {
        time.as_secs_f64() * 1e6
    }

    fn print_memory(guests: &[Guest<SharedRegion>]) -> Result<(), Box<dyn Error>> {
        let (mut all, mut shared) = (0, 0);
        for guest in guests {
            all += guest.memory().len();
            shared += guest.memory().shared_bytes()?;
        }
        println!(
            "memory of each clone: {} KiB of its own, {} KiB shared",
            ((all - shared) / guests.len()) >> 10,
            (shared / guests.len()) >> 10
        );
        Ok(())
    }

    /// The host sees the template's words everywhere, and behind them the clone's where it wrote.
    fn seen_from_outside(memory: &SharedRegion, id: Option<u32>) -> Result<(), Box<dyn Error>> {
        let all = pages(memory);
        for page in 0..all {
            let (at, mut words) = (page as usize * PAGE, [0; 8]);
            memory.read_at(at, &mut words)?;
            let own = id.filter(|_| page < all / WRITTEN).unwrap_or(0);
            let expected = u64::from(!(at as u32)) | u64::from(own) << 32;
            let seen = u64::from_le_bytes(words);
            if seen != expected {
                return Err(format!("clone {id:?}: {seen:#x} at {at:#x}, not {expected:#x}").into());
            }
        }
        Ok(())
    }
}
