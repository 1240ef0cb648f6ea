//! Copied tables, walked by a CPU. A program uses two address spaces, the tables of the second copied by
//! `copy_table` from those of the first and in the end unmapped by `unmap_table`: by KVM where this machine
//! is x86-64, and by emulators of aarch64 and riscv64. What the program reads, which of its writes fault,
//! and which pages the CPU has marked accessed and dirty must be what a model of a fork says. The model
//! knows pages and no entries.
//!
//! | file | one idea |
//! | --- | --- |
//! | `memory.rs` | the guest's memory and its parts |
//! | `cpu.rs` | how one kind of CPU is driven, and what its program does |
//! | `x86_64.rs`, `aarch64.rs`, `riscv64.rs`, `emulator.rs` | the CPUs |
//! | `space.rs` | an address space: its tables, its folios, and where each page is |
//! | `model.rs` | pages as a fork and a program should find them |
//! | `walk.rs` | what the program is asked to do, its answers, and both compared with the model |

mod aarch64;
mod cpu;
mod emulator;
mod memory;
mod model;
mod riscv64;
mod space;
mod walk;
#[cfg(target_arch = "x86_64")]
mod x86_64;

use std::process::ExitCode;

use hugekit_pte::Mapping;
use libtest_mimic::{Arguments, Completion, Failed, Trial};

use self::cpu::Cpu;
use self::emulator::EMULATORS;
use self::walk::Walked;

const MAPPINGS: [(Mapping, &str); 2] = [(Mapping::Private, "private"), (Mapping::Shared, "shared")];

fn main() -> ExitCode {
    let mut trials = Vec::new();
    #[cfg(target_arch = "x86_64")]
    trials.extend(trials_on::<x86_64::Kvm>());
    trials.extend(trials_on::<aarch64::Emulated>());
    trials.extend(trials_on::<riscv64::Emulated>());
    trials.extend(EMULATORS.iter().map(|emulator| {
        let name = format!("{}::the_words_of_the_program_are_those_of_its_text", emulator.name);
        trial(name, emulator.assembler().err(), || emulator.check_words())
    }));
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

fn trials_on<C: Cpu>() -> impl Iterator<Item = Trial> {
    let lack = C::lack();
    MAPPINGS.into_iter().map(move |(mapping, kind)| {
        let name = format!("{}::a_{kind}_fork_is_used_and_unmapped_as_its_entries_say", C::NAME);
        trial(name, lack.clone(), move || walk_a_fork::<C>(mapping))
    })
}

/// A test, or the reason why it cannot run here.
fn trial(
    name: String,
    lack: Option<String>,
    run: impl FnOnce() -> Result<(), Failed> + Send + 'static,
) -> Trial {
    match lack {
        None => Trial::test(name, run),
        Some(lack) => Trial::ignorable_test(name, move || Ok(Completion::ignored_with(lack))),
    }
}

/// The parent uses its pages and forks, both use theirs, and at last the child has none left.
fn walk_a_fork<C: Cpu>(mapping: Mapping) -> Result<(), Failed> {
    let mut walked = Walked::<C>::new();
    walked.use_pages()?;
    walked.fork(mapping)?;
    walked.use_pages()?;
    walked.has_seen_everything(mapping);
    walked.unmap_child();
    walked.use_pages()
}
