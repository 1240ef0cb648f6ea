//! A process that has installed a profile learns nothing: a test binary of its own, because there is no way back.

use hugekit::{ClearOptions, HUGE_PAGE_BYTES, Profile, Reuse};
use hugekit_bulk::learning::{self, ChosenBy};

#[test]
fn installed_profile_is_gone_by_and_nothing_is_learned() {
    let mut bytes = vec![1_u8; 32 * HUGE_PAGE_BYTES];
    let how = ClearOptions::new().reuse(Reuse::None);
    how.run(&mut bytes).unwrap();
    let before = learning::learned();
    let profile = Profile::builtin_here();
    let fixed = profile.clear.cold.routine_for(bytes.len()).name();
    profile.install().unwrap();
    for _ in 0..50 {
        let used = how.run(&mut bytes).unwrap().used.unwrap();
        assert_eq!((used.routine, used.by), (fixed, ChosenBy::Profile));
    }
    assert!(!learning::is_enabled());
    assert_eq!(learning::learned(), before);
}
