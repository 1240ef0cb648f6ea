//! Touches where the kernel refuses a call that was found in the trace of the same touch.

use hugekit_sys::injection::{self, Call, Lasting, Plan};

/// The target of a touch whose last call of this kind is refused; `None` if it makes no such call.
pub(crate) fn target_without_last(
    call: Call,
    lasting: Lasting,
    touch: impl Fn() -> Option<usize>,
) -> Option<Option<usize>> {
    let plan = |nth| Plan { nth, choice: 0, lasting };
    // The second time, nothing is asked any more that the process knows.
    for _ in 0..2 {
        injection::arm(plan(u32::MAX));
        touch();
        injection::disarm();
    }
    let last = injection::trace().iter().rposition(|&made| made == call)?;
    injection::arm(plan(u32::try_from(last).unwrap()));
    let target = touch();
    assert_eq!(injection::disarm().map(|hit| hit.call), Some(call));
    Some(target)
}
