//! The one point through which every system call of this crate passes. A test can refuse the n-th
//! call there.
//!
//! A function of `sys/` calls [`pass`] with the call's name directly before each system call, and
//! within the loop if it repeats the call. Without `--cfg hugekit_faults`, `pass` is an
//! empty function and no answer is compiled in. `engine/sys/README.md` explains how to add a system
//! call.

#[cfg(hugekit_faults)]
mod armed;
#[cfg(hugekit_faults)]
mod older;

use rustix::io;

#[cfg(hugekit_faults)]
pub use self::armed::pass;
#[cfg(hugekit_faults)]
pub use self::armed::{Hit, Lasting, Plan, arm, disarm, hit, trace};
#[cfg(hugekit_faults)]
pub use self::older::{Novelty, features_of, has};

/// Lets a call pass, or returns an error instead of the kernel. Async-signal-safe.
///
/// # Errors
/// Every call passes, unless a test refuses it.
#[cfg(not(hugekit_faults))]
#[inline(always)]
#[allow(clippy::unnecessary_wraps, reason = "with the feature it answers")]
pub const fn pass(_: Call) -> io::Result<()> {
    Ok(())
}

/// Features that only newer kernels have.
#[cfg(not(hugekit_faults))]
#[derive(Clone, Copy, Debug)]
pub enum Novelty {
    PagemapScan,
    ProtectedContinue,
}

/// Returns true if the kernel may be asked for the feature.
#[cfg(not(hugekit_faults))]
#[inline(always)]
pub const fn has(_: Novelty) -> bool {
    true
}

/// Returns those of these features of userfaultfd(2) that the kernel may be asked for.
#[cfg(not(hugekit_faults))]
#[inline(always)]
pub const fn features_of(there: u64) -> u64 {
    there
}

macro_rules! calls {
    (
        calls: { $($call:ident: [$($errno:ident)*])* }
        ioctls: { $($ioctl:ident: [$($its_errno:ident)*])* }
    ) => {
        /// Every kind of system call of `sys/`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        #[cfg_attr(not(hugekit_faults), allow(unreachable_pub))]
        #[allow(missing_docs, reason = "each is named after its system call")]
        pub enum Call { $($call,)* $($ioctl,)* }

        #[cfg(hugekit_faults)]
        impl Call {
            const ALL: &[Self] = &[$(Self::$call,)* $(Self::$ioctl,)*];

            /// Returns the errors that the kernel can return for the arguments of this crate, from
            /// the manual pages and the kernel's source.
            fn answers(self) -> &'static [io::Errno] {
                match self {
                    $(Self::$call => &[$(io::Errno::$errno),*],)*
                    $(Self::$ioctl => &[$(io::Errno::$its_errno),*],)*
                }
            }

            fn is_ioctl(self) -> bool {
                matches!(self, $(Self::$ioctl)|*)
            }
        }
    };
}

calls! {
    calls: {
        Clone: [AGAIN]
        // Not AGAIN: that a queue is full for ever is found out within a minute.
        Connect: [INTR ACCESS CONNREFUSED NOENT]
        Dup3: [BUSY INTR]
        Fadvise: [INVAL]
        Fallocate: [INTR NOSPC NOMEM]
        Fchmod: [PERM IO]
        Fork: [AGAIN NOMEM]
        Fstat: [NOMEM]
        Fstatfs: [INTR NOSYS]
        Ftruncate: [INTR INVAL]
        FutexWait: [INTR AGAIN]
        GetMempolicy: [INVAL PERM NOSYS]
        GetRobustList: [SRCH PERM]
        GetSeals: [INVAL]
        Getsockopt: [NOMEM]
        Linkat: [EXIST NOENT PERM ACCESS NOSPC]
        Madvise: [NOMEM INVAL AGAIN]
        MadviseCollapse: [NOMEM INVAL AGAIN BUSY INTR]
        MadviseDontNeed: [NOMEM INVAL]
        MadvisePopulate: [NOMEM INVAL FAULT AGAIN INTR HWPOISON]
        Mbind: [INVAL NOMEM PERM NOSYS]
        MemfdCreate: [MFILE NFILE NOMEM INVAL NODEV PERM NOSYS]
        Mincore: [AGAIN NOMEM]
        Mlock: [NOMEM AGAIN PERM]
        Mmap: [NOMEM AGAIN]
        MovePages: [NOMEM PERM NOSYS]
        Mprotect: [NOMEM]
        Mremap: [NOMEM AGAIN]
        Msync: [NOMEM]
        Munmap: [NOMEM]
        Open: [MFILE NFILE NOMEM ACCESS PERM NOENT]
        Poll: [INTR NOMEM]
        Pread: [SRCH NOMEM]
        // Not FAULT: that says of the memory that it is gone, which `tests/failed_memory.rs` is about.
        ProcessVmReadv: [NOMEM PERM NOSYS]
        Read: [IO SRCH INTR]
        ReadFault: [INTR]
        Readlink: [ACCESS NOMEM]
        Recvmsg: [INTR CONNRESET NOMEM]
        SchedGetaffinity: [INVAL PERM]
        SchedSetaffinity: [INVAL PERM]
        SchedSetscheduler: [PERM]
        Seal: [PERM INVAL]
        Sendmsg: [INTR NOMEM]
        SetLock: [AGAIN ACCESS NOLCK PERM]
        Setpriority: [ACCESS PERM]
        Sigaction: [INVAL]
        Socket: [MFILE NFILE NOMEM PERM]
        Stat: [ACCESS]
        Userfaultfd: [MFILE NFILE NOMEM PERM NOSYS]
        Waitpid: [INTR CHILD]
    }
    ioctls: {
        PagemapScan: [INVAL NOTTY NOMEM INTR]
        ProcmapQuery: [NOTTY NOENT NOMEM INTR]
        UffdApi: [INVAL PERM]
        UffdContinue: [AGAIN EXIST NOENT NOMEM FAULT]
        UffdNew: [MFILE NFILE NOMEM NOTTY]
        UffdRegister: [NOMEM BUSY INVAL PERM]
        UffdUnregister: [NOMEM INVAL]
        UffdWake: [INVAL]
        UffdWriteprotect: [AGAIN NOENT NOMEM FAULT]
        UffdZeropage: [AGAIN EXIST NOENT NOMEM]
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn injection_without_its_feature_is_not_compiled_in() {
        let mark = ["hugekit: system calls", "may be refused"].join(" ");
        let binary = std::fs::read("/proc/self/exe").unwrap();
        let is_in = binary.windows(mark.len()).any(|bytes| bytes == mark.as_bytes());
        assert_eq!(is_in, cfg!(hugekit_faults));
    }
}
