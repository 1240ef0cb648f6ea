//! The least virtual machine: one CPU, its memory from address 0 on, and a program beside it.
//!
//! The program and page tables are in pages of their own below 4 GiB, so that all of the memory is the
//! guest's to use. The CPU begins in the program, in 64-bit user mode, where every kind of KVM runs a
//! guest's instructions as they are, with addresses that are those of the memory. The program reports
//! by storing where there is no memory.
#![allow(unsafe_code)]

use std::error::Error;
use std::sync::atomic::{AtomicBool, Ordering};

use hugekit::pool::{Backing, Pool};
use hugekit::{Region, SharedRegion};
use kvm_bindings::{kvm_regs, kvm_segment, kvm_userspace_memory_region};
use kvm_ioctls::{Kvm, VcpuExit, VcpuFd, VmFd};

/// The program in the guest's addresses: a page of instructions, one of the first table, one of the second, four of the
/// third.
const PROGRAM: u64 = 0xffff_8000;
const PROGRAM_BYTES: usize = 7 * PAGE;
const PAGE: usize = 4096;

/// Addresses that KVM may use for itself, on CPUs that cannot run such a guest without.
const TASK_STATE: usize = 0xfffb_d000;

/// An address without memory: a store here ends a run.
const REPORTS: u64 = 3 << 30;

/// The most memory that stays clear of these addresses.
pub(crate) const MOST_MEMORY: usize = REPORTS as usize;

/// Memory that a guest may use.
///
/// # Safety
/// `bytes` bytes from `address` on are mapped, readable and writable, for as long as the value lives,
/// moved or not; and no code holds a reference to any of them.
pub(crate) unsafe trait GuestMemory {
    fn address(&self) -> *mut u8;
    fn bytes(&self) -> usize;
}

// SAFETY: a shared region gives no slices of its memory, and stays mapped as long as there is a handle.
unsafe impl GuestMemory for SharedRegion {
    fn address(&self) -> *mut u8 {
        self.as_ptr()
    }

    fn bytes(&self) -> usize {
        self.mapped_len()
    }
}

/// A program's report: it stores a 32-bit word this many bytes behind the address in `rsi`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Report {
    pub(crate) at: u8,
    pub(crate) word: u32,
}

/// A machine that runs one program.
#[derive(Debug)]
pub(crate) struct Guest<M> {
    cpu: VcpuFd,
    _machine: VmFd,
    _program: Program,
    memory: M,
}

/// A program and the page tables that it runs with, in memory of their own. Clones are the same memory: guests
/// that run one program share it.
#[derive(Clone, Debug)]
pub(crate) struct Program(SharedRegion);

impl<M: GuestMemory> Guest<M> {
    /// A machine with this memory, about to run `program` with `ebx` and `edx` set.
    pub(crate) fn new(
        kvm: &Kvm,
        memory: M,
        program: &Program,
        [ebx, edx]: [u32; 2],
    ) -> Result<Self, Box<dyn Error>> {
        if memory.bytes() > MOST_MEMORY {
            return Err(format!("{} bytes are too many for this guest", memory.bytes()).into());
        }
        let machine = kvm.create_vm()?;
        machine.set_tss_address(TASK_STATE)?;
        for (slot, at, memory) in [(0, 0, &memory as &dyn GuestMemory), (1, PROGRAM, &program.0)] {
            let region = kvm_userspace_memory_region {
                slot,
                flags: 0,
                guest_phys_addr: at,
                memory_size: memory.bytes() as u64,
                userspace_addr: memory.address() as u64,
            };
            // SAFETY: mapped for as long as the memory lives, which this value keeps until
            // the machine is gone (fields are dropped in order), and no code refers to it, as its trait
            // says.
            unsafe { machine.set_user_memory_region(region) }?;
        }
        let cpu = machine.create_vcpu(0)?;
        enter_user_mode(&cpu)?;
        cpu.set_regs(&kvm_regs {
            rip: PROGRAM,
            rbx: u64::from(ebx),
            rdx: u64::from(edx),
            rsi: REPORTS,
            rflags: 2, // Bit 1 is always set.
            ..Default::default()
        })?;
        Ok(Self { cpu, _machine: machine, _program: program.clone(), memory })
    }

    /// Runs the guest until it reports something.
    pub(crate) fn run(&mut self) -> Result<Report, Box<dyn Error>> {
        loop {
            if let Some(report) = self.enter()? {
                return Ok(report);
            }
        }
    }

    /// Runs the guest until it reports something, or until `paused` is set and its thread is interrupted by a signal:
    /// `None`. Then it is between two instructions, and its registers are all that there is of it beside its memory.
    pub(crate) fn run_until(
        &mut self,
        paused: &AtomicBool,
    ) -> Result<Option<Report>, Box<dyn Error>> {
        loop {
            match self.enter()? {
                None if paused.load(Ordering::Acquire) => return Ok(None),
                None => {}
                Some(report) => return Ok(Some(report)),
            }
        }
    }

    /// Runs the guest until it reports something, or a signal comes: then a report that it made before has reached it.
    fn enter(&mut self) -> Result<Option<Report>, Box<dyn Error>> {
        match self.cpu.run() {
            Ok(VcpuExit::MmioWrite(address, data)) if address >= REPORTS => {
                let at = u8::try_from(address - REPORTS)?;
                Ok(Some(Report { at, word: u32::from_le_bytes(data.try_into()?) }))
            }
            Ok(other) => Err(format!("the guest stops: {other:?}").into()),
            Err(error) if error.errno() == libc::EINTR => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns the registers that its program can change.
    pub(crate) fn registers(&self) -> Result<kvm_regs, Box<dyn Error>> {
        Ok(self.cpu.get_regs()?)
    }

    /// Has it go on as another guest was paused, on the same bytes.
    pub(crate) fn set_registers(&mut self, registers: &kvm_regs) -> Result<(), Box<dyn Error>> {
        Ok(self.cpu.set_regs(registers)?)
    }

    /// The machine is gone, its memory stays.
    pub(crate) fn into_memory(self) -> M {
        self.memory
    }

    pub(crate) fn memory(&self) -> &M {
        &self.memory
    }
}

impl Program {
    /// These instructions.
    pub(crate) fn new(instructions: &[u8]) -> Result<Self, Box<dyn Error>> {
        Ok(Self(pages_with(instructions)?.share()))
    }
}

/// The program, and tables that map each of the first 4 GiB of addresses to itself by pages of 2 MiB.
fn pages_with(program: &[u8]) -> Result<Region, Box<dyn Error>> {
    const USABLE: u64 = 0b111; // Present, writable, for user mode.
    const HUGE: u64 = 1 << 7;
    let pool = Pool::builder(PROGRAM_BYTES).backing(Backing::Base).name("program").build()?;
    let mut pages = pool.region(PROGRAM_BYTES)?;
    let (code, tables) = pages.split_at_mut(PAGE);
    code.get_mut(..program.len())
        .ok_or("the program is longer than a page")?
        .copy_from_slice(program);
    let table_at = |index: u64| PROGRAM + (1 + index) * PAGE as u64;
    let first = [table_at(1) | USABLE].into_iter();
    let second = (0..4).map(|gigabyte| table_at(2 + gigabyte) | USABLE);
    let third = (0..4 * 512).map(|page| page << 21 | HUGE | USABLE);
    let unused = || std::iter::repeat(0);
    let entries =
        first.chain(unused()).take(512).chain(second.chain(unused()).take(512)).chain(third);
    let slots = tables.chunks_exact_mut(8);
    slots.zip(entries).for_each(|(slot, entry)| slot.copy_from_slice(&entry.to_le_bytes()));
    Ok(pages)
}

fn enter_user_mode(cpu: &VcpuFd) -> Result<(), kvm_ioctls::Error> {
    let mut registers = cpu.get_sregs()?;
    let data = kvm_segment {
        limit: u32::MAX,
        selector: 0x2b,
        type_: 3, // Readable and writable, accessed.
        present: 1,
        dpl: 3,
        db: 1, // 32 bits, which does not matter for data.
        s: 1,  // Code or data.
        g: 1,  // The limit counts pages.
        ..Default::default()
    };
    let code = kvm_segment { selector: 0x33, type_: 11, db: 0, l: 1, ..data };
    registers.cs = code; // Executable and readable, accessed, 64 bits.
    for segment in [&mut registers.ds, &mut registers.es, &mut registers.ss] {
        *segment = data;
    }
    registers.cr3 = PROGRAM + PAGE as u64;
    registers.cr4 |= 1 << 5; // Long entries of page tables.
    registers.cr0 = 1 << 31 | 1 << 16 | 1 << 5 | 1; // Paging, which user mode obeys; protected mode.
    registers.efer |= 1 << 10 | 1 << 8; // 64 bits, in force and enabled.
    cpu.set_sregs(&registers)
}
