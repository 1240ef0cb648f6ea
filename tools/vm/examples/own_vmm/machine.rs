//! A guest that runs in a thread, is paused, and whose registers are a file.
#![allow(unsafe_code)]

use std::error::Error;
use std::fs;
use std::os::unix::thread::JoinHandleExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use kvm_bindings::kvm_regs;
use kvm_ioctls::Kvm;

use crate::common::computing::{ENDED, PROGRAM};
use crate::common::guest::{Guest, GuestMemory, Program, Report};
use crate::memory::Memory;

/// Bytes of a guest's memory.
pub(crate) const BYTES: usize = 32 << 20;

/// The steps that a guest computes.
const STEPS: u32 = 1 << 25;

/// Set in the last number of a guest that has ended.
const HAS_ENDED: u64 = 1 << 32;

pub(crate) fn new_guest<M: GuestMemory>(
    kvm: &Kvm,
    memory: M,
    program: &Program,
) -> Result<Guest<M>, Box<dyn Error>> {
    Guest::new(kvm, memory, program, [BYTES as u32 - 4, STEPS])
}

/// A virtual machine.
pub(crate) struct Machine {
    state: State,
    end: Arc<AtomicU64>,
}

enum State {
    Running(JoinHandle<Result<Guest<Memory>, String>>, Arc<AtomicBool>),
    Paused(Guest<Memory>),
    /// Its thread has failed.
    Broken,
}

impl Machine {
    /// Paused, with the registers of a file.
    pub(crate) fn restore(state: &Path, pager: &Path) -> Result<Self, Box<dyn Error>> {
        let kvm = Kvm::new()?;
        let memory = Memory::of_pager(BYTES, pager)?;
        let mut guest = new_guest(&kvm, memory, &Program::new(&PROGRAM)?)?;
        let (registers, end) = read_state(state)?;
        guest.set_registers(&registers)?;
        Ok(Self { state: State::Paused(guest), end: Arc::new(end.into()) })
    }

    pub(crate) fn is_running(&self) -> bool {
        matches!(self.state, State::Running(..))
    }

    /// The last number of a guest that has ended.
    pub(crate) fn end(&self) -> Option<u32> {
        let end = self.end.load(Ordering::Acquire);
        (end & HAS_ENDED != 0).then_some(end as u32)
    }

    pub(crate) fn resume(&mut self) {
        self.state = match std::mem::replace(&mut self.state, State::Broken) {
            State::Paused(guest) => start(guest, &self.end),
            other => other,
        };
    }

    /// Signals interrupt the guest until it is between two instructions.
    pub(crate) fn pause(&mut self) -> Result<(), Box<dyn Error>> {
        let (thread, paused) = match std::mem::replace(&mut self.state, State::Broken) {
            State::Running(thread, paused) => (thread, paused),
            other => {
                self.state = other;
                return Ok(());
            }
        };
        paused.store(true, Ordering::Release);
        while !thread.is_finished() {
            // SAFETY: the thread was not joined yet, and the signal has a handler.
            unsafe { libc::pthread_kill(thread.as_pthread_t(), libc::SIGUSR1) };
            thread::sleep(Duration::from_micros(50));
        }
        self.state = State::Paused(thread.join().map_err(|_| "the guest's thread panicked")??);
        Ok(())
    }

    /// Writes the registers of a paused guest.
    pub(crate) fn save(&self, to: &Path) -> Result<(), Box<dyn Error>> {
        match &self.state {
            State::Paused(guest) => {
                write_state(&guest.registers()?, self.end.load(Ordering::Acquire), to)
            }
            _ => Err("the guest is not paused".into()),
        }
    }
}

fn start(mut guest: Guest<Memory>, end: &Arc<AtomicU64>) -> State {
    interrupt_by_signals();
    let (paused, end) = (Arc::new(AtomicBool::new(false)), Arc::clone(end));
    let asked = Arc::clone(&paused);
    let run = move || {
        while end.load(Ordering::Acquire) == 0 {
            match guest.run_until(&asked).map_err(|error| error.to_string())? {
                Some(Report { at: ENDED, word }) => {
                    end.store(HAS_ENDED | u64::from(word), Ordering::Release);
                }
                Some(_) => {}
                None => return Ok(guest),
            }
        }
        Ok(guest)
    };
    State::Running(thread::spawn(run), paused)
}

/// The signal ends what KVM does, and nothing else happens.
fn interrupt_by_signals() {
    extern "C" fn nothing(_: libc::c_int) {}
    let handler = nothing as extern "C" fn(libc::c_int) as libc::sighandler_t;
    // SAFETY: a handler that does nothing may interrupt everything.
    unsafe { libc::signal(libc::SIGUSR1, handler) };
}

/// The registers, the last number, and the checksum that tells that all of them are there.
pub(crate) fn write_state(
    registers: &kvm_regs,
    mut end: u64,
    to: &Path,
) -> Result<(), Box<dyn Error>> {
    let mut bytes = words(&mut { *registers }, &mut end).map(|word| word.to_le_bytes()).concat();
    bytes.extend(crc64(&bytes).to_le_bytes());
    Ok(fs::write(to, bytes)?)
}

fn read_state(from: &Path) -> Result<(kvm_regs, u64), Box<dyn Error>> {
    let bytes = fs::read(from)?;
    let (mut registers, mut end) = (kvm_regs::default(), 0);
    let places = words(&mut registers, &mut end);
    if bytes.len() != 8 * (places.len() + 1) {
        return Err(format!("a state of {} bytes", bytes.len()).into());
    }
    for (place, word) in places.into_iter().zip(bytes.chunks_exact(8)) {
        *place = u64::from_le_bytes(word.try_into()?);
    }
    Ok((registers, end))
}

/// By the polynomial of Jones, reflected.
fn crc64(bytes: &[u8]) -> u64 {
    let bit = |sum: u64| if sum & 1 == 1 { sum >> 1 ^ 0x95ac_9329_ac4b_c9b5 } else { sum >> 1 };
    bytes.iter().fold(0, |sum, &byte| (0..8).fold(sum ^ u64::from(byte), |sum, _| bit(sum)))
}

#[rustfmt::skip]
fn words<'a>(r: &'a mut kvm_regs, end: &'a mut u64) -> [&'a mut u64; 19] {
    [
        &mut r.rax, &mut r.rbx, &mut r.rcx, &mut r.rdx, &mut r.rsi, &mut r.rdi, &mut r.rsp,
        &mut r.rbp, &mut r.r8, &mut r.r9, &mut r.r10, &mut r.r11, &mut r.r12, &mut r.r13,
        &mut r.r14, &mut r.r15, &mut r.rip, &mut r.rflags, end,
    ]
}
