//! A process that may not read the CPU's clock (`prctl(PR_SET_TSC)`) learns nothing, and lives: a test binary of its own,
//! because what can be learned is found out once.
#![cfg(target_arch = "x86_64")]
#![allow(unsafe_code)]

use hugekit_testing::child;

use child::in_a_child;
use hugekit_bulk::learning;

#[test]
fn clears_without_a_clock_are_right_and_nothing_is_learned() {
    let mut bytes = vec![1_u8; 96 << 20];
    let code = in_a_child(|| {
        // SAFETY: makes instructions of this process's that read the counter fail.
        let is_set = unsafe { libc::prctl(libc::PR_SET_TSC, libc::PR_TSC_SIGSEGV) } == 0;
        hugekit::clear(&mut bytes);
        let is_clear = bytes.iter().all(|&byte| byte == 0);
        i32::from(!is_set) + 2 * i32::from(!is_clear) + 4 * i32::from(learning::is_enabled())
    });
    assert_eq!(code, 0);
}
