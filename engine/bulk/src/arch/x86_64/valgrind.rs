//! Detection of Valgrind.
//!
//! The instructions are those of Valgrind's own header: they do nothing on a CPU, and Valgrind
//! takes them for a request. Other signs are not certain: programs that Valgrind does not run
//! inherit the environment, and Valgrind's libraries need not be loaded.

use core::arch::asm;

/// `VG_USERREQ__RUNNING_ON_VALGRIND`.
const RUNNING_ON_VALGRIND: u64 = 0x1001;

/// Returns true if this process runs on Valgrind.
pub fn runs_on_valgrind() -> bool {
    let request = [RUNNING_ON_VALGRIND, 0, 0, 0, 0, 0];
    let mut answer = 0_u64;
    // SAFETY: the register is turned by 128 bits in all, and exchanged with itself: nothing changes on a CPU.
    // Valgrind reads the request and answers in RDX.
    unsafe {
        asm!(
            "rol rdi, 3",
            "rol rdi, 13",
            "rol rdi, 61",
            "rol rdi, 51",
            "xchg rbx, rbx",
            in("rax") request.as_ptr(),
            inout("rdx") answer,
            options(nostack, readonly),
        );
    }
    answer > 0
}
