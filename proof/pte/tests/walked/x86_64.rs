//! x86-64 with four levels of tables, by KVM.
//!
//! The program runs in ring 3 and has no handler of faults, because not every kind of KVM runs ring 0, or
//! an interrupt into it, as a CPU would. A fault stops the guest instead (a triple fault), and the host
//! goes on behind the request that is unfinished. It finds this one in the guest's memory, since some
//! CPUs are reset by then; where they are, KVM no longer knows the code and the address of the fault. The
//! program has the host's attention by a fault, too: for another tree, and in the end.
//!
//! Where KVM keeps tables of its own for the CPU (shadow paging), it is KVM that reads these ones and
//! marks pages in them.
#![allow(unsafe_code)]

use std::io;
use std::marker::PhantomData;

use hugekit_pte::X86_64;
use kvm_bindings::{
    KVM_MAX_CPUID_ENTRIES, kvm_dtable, kvm_regs, kvm_segment, kvm_sregs,
    kvm_userspace_memory_region,
};
use kvm_ioctls::{VcpuExit, VcpuFd, VmFd};
use libtest_mimic::Failed;

use crate::cpu::{Cpu, ENTRY, REQUEST, REQUESTS, REQUESTS_END, Refused, UNTOLD};
use crate::memory::{BYTES, Memory};

std::arch::global_asm!(include_str!("programs/x86_64.s"));

unsafe extern "C" {
    static walked_x86_64: u8;
    static walked_x86_64_end: u8;
}

/// Addresses that KVM may use for itself, on CPUs that cannot run such a guest without.
const TASK_STATE: usize = 0xfffb_d000;

/// The bit of `rflags` that is always set.
const FLAGS: u64 = 1 << 1;

#[derive(Debug)]
pub(crate) enum Kvm {}

impl Cpu for Kvm {
    type Format = X86_64;

    const NAME: &'static str = "x86_64";
    const MEMORY: u64 = 0;
    const FOUR_LEVELS: bool = true;

    /// Present, writable and for user mode, as far as this level goes.
    fn table(address: u64) -> u64 {
        address | 0b111
    }

    fn block(address: u64) -> u64 {
        address | 1 << 7 | 0b111
    }

    /// Bits 0, 1 and 2: there is a page, it was a write, it was in user mode.
    fn code(refused: Refused) -> u64 {
        0b100 | u64::from(refused.write) << 1 | u64::from(refused.present)
    }

    fn lack() -> Option<String> {
        kvm_ioctls::Kvm::new().err().map(|error| format!("/dev/kvm cannot be opened: {error}"))
    }

    fn run(memory: &mut Memory, tree: u64) -> Result<(), Failed> {
        memory.write(ENTRY, program());
        let mut guest = EmulatedGuest::new(memory, tree)?;
        while guest.go_on()? {}
        Ok(())
    }
}

fn program() -> &'static [u8] {
    let (start, end) = (&raw const walked_x86_64, &raw const walked_x86_64_end);
    // SAFETY: the assembler has put both labels around bytes of this program, which are never written.
    unsafe { std::slice::from_raw_parts(start, end.addr() - start.addr()) }
}

/// The code of a fault before the program has finished its request. No fault of user mode has this code.
const UNFINISHED: u64 = 1;

const PAGE_FAULT: u8 = 14;

/// A machine that runs the program.
struct EmulatedGuest<'a> {
    cpu: VcpuFd,
    _machine: VmFd,
    tree: u64,
    /// The request that the program is at, or one before it.
    request: u64,
    /// The memory's first byte. Nothing else uses the memory meanwhile.
    memory: *mut u8,
    _borrowed: PhantomData<&'a mut Memory>,
}

impl<'a> EmulatedGuest<'a> {
    fn new(memory: &'a mut Memory, tree: u64) -> Result<Self, Failed> {
        let memory = memory.as_mut_ptr();
        let kvm = kvm_ioctls::Kvm::new()?;
        let machine = kvm.create_vm()?;
        machine.set_tss_address(TASK_STATE)?;
        let region = kvm_userspace_memory_region {
            slot: 0,
            flags: 0,
            guest_phys_addr: Kvm::MEMORY,
            memory_size: BYTES,
            userspace_addr: memory as u64,
        };
        // SAFETY: so many bytes are mapped there, and borrowed for as long as the machine lives.
        unsafe { machine.set_user_memory_region(region) }?;
        let cpu = machine.create_vcpu(0)?;
        cpu.set_cpuid2(&kvm.get_supported_cpuid(KVM_MAX_CPUID_ENTRIES)?)?;
        let (request, _borrowed) = (Kvm::MEMORY + REQUESTS, PhantomData);
        let guest = Self { cpu, _machine: machine, tree, request, memory, _borrowed };
        guest.begin()?;
        Ok(guest)
    }

    /// Lets the program run until it needs the host. Returns whether it has more to do.
    fn go_on(&mut self) -> Result<bool, Failed> {
        match self.cpu.run() {
            Ok(VcpuExit::Shutdown) => {}
            Ok(other) => return Err(format!("the program stops: {other:?}").into()),
            Err(error) if io::Error::from(error).kind() == io::ErrorKind::Interrupted => {
                return Ok(true);
            }
            Err(error) => return Err(error.into()),
        }
        while self.word(3) != UNFINISHED {
            self.request += REQUEST;
        }
        match self.word(0) {
            0 => return Ok(false),
            3 => self.tree = self.word(1),
            _ => {
                let [code, address] = self.told()?;
                self.set_word(3, code);
                self.set_word(4, address);
            }
        }
        self.request += REQUEST;
        self.begin()?;
        Ok(true)
    }

    /// The code of a page fault and its address, if the machine still knows them.
    fn told(&self) -> Result<[u64; 2], Failed> {
        let last = self.cpu.get_vcpu_events()?.exception;
        if (last.nr, last.has_error_code) != (PAGE_FAULT, 1) {
            return Ok([UNTOLD; 2]);
        }
        Ok([last.error_code.into(), self.cpu.get_sregs()?.cr2])
    }

    fn word(&self, index: usize) -> u64 {
        // SAFETY: the place is within the memory, which nothing writes while the guest stands.
        unsafe { self.place(index).read_volatile() }
    }

    fn set_word(&mut self, index: usize, word: u64) {
        // SAFETY: `place` is within the table that `self` borrows mutably, so nothing reads it meanwhile.
        unsafe { self.place(index).write_volatile(word) }
    }

    /// The place of one of the request's words.
    fn place(&self, index: usize) -> *mut u64 {
        let at = (self.request - Kvm::MEMORY) as usize + 8 * index;
        assert!(index < 5 && self.request < Kvm::MEMORY + REQUESTS_END, "requests have an end");
        self.memory.wrapping_add(at).cast()
    }

    /// Has the program begin with the request.
    fn begin(&self) -> Result<(), Failed> {
        self.cpu.set_sregs(&user_mode(self.cpu.get_sregs()?, self.tree))?;
        let (rip, rsi) = (ENTRY, self.request);
        self.cpu.set_regs(&kvm_regs { rip, rsi, rflags: FLAGS, ..Default::default() })?;
        Ok(())
    }
}

/// Ring 3 in 64-bit mode, with this tree. Nothing can interrupt it.
fn user_mode(before: kvm_sregs, tree: u64) -> kvm_sregs {
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
    // Executable and readable, accessed, 64 bits.
    let code = kvm_segment { selector: 0x33, type_: 11, db: 0, l: 1, ..data };
    kvm_sregs {
        cs: code,
        ds: data,
        es: data,
        ss: data,
        idt: kvm_dtable::default(),
        cr3: tree,
        cr4: before.cr4 | 1 << 5, // Long entries of page tables.
        // Paging, which ring 3 obeys; coprocessor errors; protected mode.
        cr0: 1 << 31 | 1 << 16 | 1 << 5 | 1,
        // No-execute; 64 bits, in force and enabled.
        efer: before.efer | 1 << 11 | 1 << 10 | 1 << 8,
        ..before
    }
}
