//! The least virtual machine: one CPU, its memory from address 0 on, and a program beside it.
//!
//! The program is in a page of its own at the end of the address space, so that all of the memory is
//! the guest's to use. The CPU starts where a boot loader would leave it: 32-bit protected mode, flat
//! segments, no paging, which reaches just below 4 GiB without a single table to set up.
#![allow(unsafe_code)]

use std::error::Error;

use hugekit::pool::{Backing, Pool};
use hugekit::{Region, SharedRegion};
use kvm_bindings::{kvm_regs, kvm_segment, kvm_userspace_memory_region};
use kvm_ioctls::{Kvm, VcpuExit, VcpuFd, VmFd};

/// Where the program lies, in the guest's addresses.
const PROGRAM: u64 = 0xffff_f000;

/// Addresses just below the program that KVM may use for itself, on CPUs that cannot run such a guest
/// without.
const TASK_STATE: usize = 0xfffb_d000;

/// The most memory that stays clear of these addresses.
pub(crate) const MOST_MEMORY: usize = 3 << 30;

/// Memory that a guest may use.
///
/// # Safety
/// `bytes` bytes from `address` on are mapped, readable and writable, for as long as the value lives,
/// moved or not; and nobody holds a reference to any of them.
pub(crate) unsafe trait GuestMemory {
    fn address(&self) -> *mut u8;
    fn bytes(&self) -> usize;
}

// SAFETY: a shared region hands out no slices, and stays mapped as long as there is a handle.
unsafe impl GuestMemory for SharedRegion {
    fn address(&self) -> *mut u8 {
        self.as_ptr()
    }

    fn bytes(&self) -> usize {
        self.mapped_len()
    }
}

/// What a program tells by writing a 32-bit word to a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Report {
    pub(crate) port: u16,
    pub(crate) word: u32,
}

/// A machine that runs one program.
#[derive(Debug)]
pub(crate) struct Guest<M> {
    cpu: VcpuFd,
    _machine: VmFd,
    _program: SharedRegion,
    memory: M,
}

impl<M: GuestMemory> Guest<M> {
    /// A machine with this memory, about to run `program` with `ebx` set.
    pub(crate) fn new(kvm: &Kvm, memory: M, program: &[u8], ebx: u32) -> Result<Self, Box<dyn Error>> {
        if memory.bytes() > MOST_MEMORY {
            return Err(format!("{} bytes are too many for this guest", memory.bytes()).into());
        }
        let program = page_with(program)?.share();
        let machine = kvm.create_vm()?;
        machine.set_tss_address(TASK_STATE)?;
        for (slot, at, memory) in [(0, 0, &memory as &dyn GuestMemory), (1, PROGRAM, &program)] {
            let region = kvm_userspace_memory_region {
                slot,
                flags: 0,
                guest_phys_addr: at,
                memory_size: memory.bytes() as u64,
                userspace_addr: memory.address() as u64,
            };
            // SAFETY: mapped for as long as the memory lives, which this value keeps until
            // the machine is gone (fields are dropped in order), and referred to by nobody, as its trait
            // says.
            unsafe { machine.set_user_memory_region(region) }?;
        }
        let cpu = machine.create_vcpu(0)?;
        enter_protected_mode(&cpu)?;
        cpu.set_regs(&kvm_regs {
            rip: PROGRAM,
            rbx: u64::from(ebx),
            rflags: 2, // Bit 1 is always set.
            ..Default::default()
        })?;
        Ok(Self { cpu, _machine: machine, _program: program, memory })
    }

    /// Runs the guest until it reports something; `None` if it halts.
    pub(crate) fn run(&mut self) -> Result<Option<Report>, Box<dyn Error>> {
        loop {
            match self.cpu.run() {
                Ok(VcpuExit::IoOut(port, data)) => {
                    let word = u32::from_le_bytes(data.try_into()?);
                    return Ok(Some(Report { port, word }));
                }
                Ok(VcpuExit::Hlt) => return Ok(None),
                Ok(other) => return Err(format!("the guest stops: {other:?}").into()),
                Err(error) if error.errno() == libc::EINTR => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    pub(crate) fn memory(&self) -> &M {
        &self.memory
    }
}

fn page_with(program: &[u8]) -> Result<Region, Box<dyn Error>> {
    let pool = Pool::builder(4096).backing(Backing::Base).name("program").build()?;
    let mut page = pool.region(4096)?;
    page.get_mut(..program.len())
        .ok_or("the program is longer than a page")?
        .copy_from_slice(program);
    Ok(page)
}

fn enter_protected_mode(cpu: &VcpuFd) -> Result<(), kvm_ioctls::Error> {
    let mut registers = cpu.get_sregs()?;
    let data = kvm_segment {
        base: 0,
        limit: u32::MAX,
        selector: 0x10,
        type_: 3, // Readable and writable, accessed.
        present: 1,
        db: 1, // 32 bits.
        s: 1,  // Code or data.
        g: 1,  // The limit counts pages.
        ..Default::default()
    };
    registers.cs = kvm_segment { selector: 8, type_: 11, ..data }; // Executable and readable, accessed.
    for segment in [&mut registers.ds, &mut registers.es, &mut registers.ss] {
        *segment = data;
    }
    registers.cr0 |= 1; // Protected mode.
    cpu.set_sregs(&registers)
}
