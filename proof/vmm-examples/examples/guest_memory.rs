//! A virtual machine whose memory comes from a pool.
//!
//! ```sh
//! cargo run --release -p hugekit-vmm-examples --example guest_memory -- [MIB]
//! ```
//!
//! A VMM waits while its guest's memory is cleared: all of it at once with `MAP_POPULATE`, or page by
//! page at the guest's first touch. A pool has cleared it before, or clears it by threads of its own as the
//! guest touches it (*dirty*; never in place, because KVM cannot wait there). The same guest runs on all: it looks
//! whether all of its memory is zero, writes to all of it, and verifies what it wrote. Timed are the
//! start, from asking for memory to the guest's first instruction, and all of it.

mod common;

#[cfg(not(target_arch = "x86_64"))]
fn main() {
    println!("skipped: the guest's program is for x86-64");
}

#[cfg(target_arch = "x86_64")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    match kvm_ioctls::Kvm::new() {
        Ok(kvm) => guests::compare(&kvm, asked_for()?),
        Err(error) => {
            println!("skipped: /dev/kvm cannot be opened: {error}");
            Ok(())
        }
    }
}

/// Bytes of the guest's memory: 1 GiB unless said.
#[cfg(target_arch = "x86_64")]
fn asked_for() -> Result<usize, String> {
    let most = common::guest::MOST_MEMORY >> 20;
    let Some(word) = std::env::args().nth(1) else { return Ok(1 << 30) };
    match word.parse() {
        Ok(mib) if (1..=most).contains(&mib) => Ok(mib << 20),
        _ => Err(format!("{word} is no number of MiB from 1 to {most}")),
    }
}

#[cfg(target_arch = "x86_64")]
mod guests {
    #![allow(unsafe_code)]

    use std::error::Error;
    use std::time::{Duration, Instant};

    use hugekit::fault::FaultMode;
    use hugekit::pool::Clearing;
    use hugekit::{Pool, PoolError};
    use kvm_ioctls::Kvm;

    use crate::common::anonymous::Anonymous;
    use crate::common::guest::{Guest, GuestMemory, Program, Report};

    const ROUNDS: usize = 3;

    /// The offsets at which the program stores its reports.
    const STARTED: u8 = 0;
    const VERIFIED: u8 = 4;
    const NOT_ZERO: u8 = 8;
    const NOT_AS_WRITTEN: u8 = 12;

    /// `ebx` is how many words of 32 bits there are from address 0 on, `rsi` where reports go. A word is
    /// written as the complement of its address.
    #[rustfmt::skip]
    const PROGRAM: [u8; 59] = [
        0xfc,                       //         cld
        0x31, 0xc0,                 //         xor eax, eax
        0x89, 0x46, STARTED,        //         mov [rsi + STARTED], eax
        0x31, 0xff,                 //         xor edi, edi
        0x89, 0xd9,                 //         mov ecx, ebx
        0xf3, 0xaf,                 //         repe scasd          ; all zero?
        0x75, 33,                   //         jne not_zero
        0x31, 0xff,                 //         xor edi, edi
        0x89, 0xd9,                 //         mov ecx, ebx
        0x89, 0xf8,                 // write:  mov eax, edi
        0xf7, 0xd0,                 //         not eax
        0xab,                       //         stosd
        0xff, 0xc9,                 //         dec ecx
        0x75, 0xf7,                 //         jnz write
        0x31, 0xff,                 //         xor edi, edi
        0x89, 0xd9,                 //         mov ecx, ebx
        0x89, 0xf8,                 // verify: mov eax, edi
        0xf7, 0xd0,                 //         not eax
        0xaf,                       //         scasd
        0x75, 15,                   //         jne not_as_written
        0xff, 0xc9,                 //         dec ecx
        0x75, 0xf5,                 //         jnz verify
        0x89, 0xd8,                 //         mov eax, ebx
        0x89, 0x46, VERIFIED,       //         mov [rsi + VERIFIED], eax   ; the last run ends here
                                    // not_zero:
        0x8d, 0x47, 0xfc,           //         lea eax, [rdi - 4]
        0x89, 0x46, NOT_ZERO,       //         mov [rsi + NOT_ZERO], eax
                                    // not_as_written:
        0x8d, 0x47, 0xfc,           //         lea eax, [rdi - 4]
        0x89, 0x46, NOT_AS_WRITTEN, //         mov [rsi + NOT_AS_WRITTEN], eax
    ];

    /// From asking for memory to the guest's first instruction, and to its last.
    #[derive(Clone, Copy)]
    struct StartTimes {
        started: Duration,
        verified: Duration,
    }

    pub(super) fn compare(kvm: &Kvm, bytes: usize) -> Result<(), Box<dyn Error>> {
        let begin = Instant::now();
        let pool = Pool::builder(bytes).name("guest").scrub_threads(0).build()?;
        let made = begin.elapsed();
        for fallback in &pool.backing_report().fallbacks {
            println!("not on {}: {}", fallback.backing, fallback.reason);
        }
        println!("{} MiB on {}, made in {}", bytes >> 20, pool.backing(), milliseconds(made));
        let (mut of_pool, mut dirty, mut anonymous) = (Vec::new(), Vec::new(), Vec::new());
        let threaded = pool
            .region_builder(bytes)
            .clearing(Clearing::OnFault)
            .fault_mode(FaultMode::Threaded { threads: 1 });
        for _ in 0..ROUNDS {
            pool.scrub()?;
            of_pool.push(start(kvm, || Ok(pool.region(bytes)?.share()))?);
            // What the guest before has left.
            match threaded.build() {
                Ok(region) => {
                    drop(region);
                    dirty.push(start(kvm, || Ok(threaded.build()?.share()))?);
                }
                Err(PoolError::Fault(error)) => println!("dirty region left out: {error}"),
                Err(error) => return Err(error.into()),
            }
            anonymous.push(start(kvm, || Anonymous::populated(bytes))?);
        }
        println!("medians of {ROUNDS}        first instruction  all verified");
        print("MAP_POPULATE", &anonymous);
        print("region of a pool", &of_pool);
        if !dirty.is_empty() {
            print("dirty region", &dirty);
        }
        println!("the clean region was cleared before it was asked for, in the background");
        Ok(())
    }

    fn print(what: &str, times: &[StartTimes]) {
        let [started, verified] =
            [|times: &StartTimes| times.started, |times: &StartTimes| times.verified].map(
                |which: fn(&StartTimes) -> Duration| milliseconds(median(times.iter().map(which))),
            );
        println!("{what:16} {started:>18} {verified:>18}");
    }

    fn median(times: impl Iterator<Item = Duration>) -> Duration {
        let mut times: Vec<Duration> = times.collect();
        times.sort();
        times[times.len() / 2]
    }

    fn milliseconds(time: Duration) -> String {
        format!("{:.2} ms", time.as_secs_f64() * 1e3)
    }

    /// Runs the program on memory that is asked for now.
    fn start<M: GuestMemory>(
        kvm: &Kvm,
        ask: impl FnOnce() -> Result<M, Box<dyn Error>>,
    ) -> Result<StartTimes, Box<dyn Error>> {
        let begin = Instant::now();
        let memory = ask()?;
        let words = u32::try_from(memory.bytes() / 4)?;
        let mut guest = Guest::new(kvm, memory, &Program::new(&PROGRAM)?, [words, 0])?;
        expect(guest.run()?, Report { at: STARTED, word: 0 })?;
        let started = begin.elapsed();
        expect(guest.run()?, Report { at: VERIFIED, word: words })?;
        let verified = begin.elapsed();
        seen_from_outside(guest.memory(), words)?;
        Ok(StartTimes { started, verified })
    }

    fn expect(report: Report, expected: Report) -> Result<(), String> {
        match report {
            report if report == expected => Ok(()),
            Report { at: NOT_ZERO, word } => Err(format!("not zero at {word:#x}")),
            Report { at: NOT_AS_WRITTEN, word } => Err(format!("not as written at {word:#x}")),
            other => Err(format!("the guest was to report {expected:?}, not {other:?}")),
        }
    }

    /// The host sees what the guest wrote.
    fn seen_from_outside(memory: &impl GuestMemory, words: u32) -> Result<(), String> {
        for at in [0, words / 2, words - 1].map(|word| 4 * word) {
            // SAFETY: a whole word within the memory, which no code refers to; the guest is stopped.
            let word = unsafe { memory.address().add(at as usize).cast::<u32>().read_volatile() };
            if word != !at {
                return Err(format!("the guest wrote {:#x} at {at:#x}, here is {word:#x}", !at));
            }
        }
        Ok(())
    }
}
