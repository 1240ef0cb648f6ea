//! Detection of Valgrind, by the instructions of Valgrind's own header, which do nothing on a CPU.

use core::arch::asm;

/// `VG_USERREQ__RUNNING_ON_VALGRIND`.
const RUNNING_ON_VALGRIND: u64 = 0x1001;

/// Returns true if this process runs on Valgrind.
pub fn runs_on_valgrind() -> bool {
    let request = [RUNNING_ON_VALGRIND, 0, 0, 0, 0, 0];
    let mut answer = 0_u64;
    // SAFETY: the register is turned by 128 bits in all, and another one combined with itself: nothing changes on a
    // CPU. Valgrind reads the request and answers in X3.
    unsafe {
        asm!(
            "ror x12, x12, #3",
            "ror x12, x12, #13",
            "ror x12, x12, #51",
            "ror x12, x12, #61",
            "orr x10, x10, x10",
            in("x4") request.as_ptr(),
            inout("x3") answer,
            options(nostack, readonly),
        );
    }
    answer > 0
}
