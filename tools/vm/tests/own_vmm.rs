//! Guests of a VMM that is not Firecracker are saved, restored and forked across processes.

use hugekit_testing::example;

#[test]
fn guests_of_another_vmm_end_as_one_that_was_never_paused() {
    let output = example::build("own_vmm").unwrap().output().unwrap();
    let print = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "{print}");
    if print.starts_with("skipped") {
        return;
    }
    assert!(print.ends_with("4 guests ended exactly as one that was never paused\n"), "{print}");
}
