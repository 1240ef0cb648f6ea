//! Profiles as `hugekit tune` stores them: every program that links the library reads one at its first call.

use std::sync::LazyLock;

use hugekit::arch::{CpuModel, Vendor};
use hugekit::machine::CacheSizes;
use hugekit::profile::StoredProfile;
use hugekit::{ClearOptions, CopyOptions, Profile, Reuse, Threads};

/// The machine that kept inputs are of.
const CPU: CpuModel = CpuModel { vendor: Vendor::Other, family: 6, model: 7 };
const CACHES: CacheSizes =
    CacheSizes { l1d: 32 << 10, l2: 1 << 20, llc: 32 << 20, llc_shared_by: 2 };

/// A profile that is taken in makes no operation wrong, and is the same when it is taken in again.
pub(crate) fn run(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let Ok(stored) = StoredProfile::parse(text) else { return };
    let written = stored.to_toml();
    let again = StoredProfile::parse(&written).expect("what was written can be read");
    assert_eq!(again.to_toml(), written);
    if let Ok(profile) = stored.for_machine(CPU, CACHES) {
        go_by(&profile);
    }
}

/// Clears and copies a few lengths by it.
fn go_by(profile: &Profile) {
    static SOURCE: LazyLock<Vec<u8>> =
        LazyLock::new(|| (0..96 << 10).map(|at| (at % 251 + 1) as u8).collect());
    for len in [0, 1, 4096, 40_000, SOURCE.len()] {
        for reuse in [Reuse::Unknown, Reuse::Target, Reuse::All, Reuse::None] {
            let mut bytes = SOURCE[..len].to_vec();
            let clear = ClearOptions::new().profile(profile).reuse(reuse).threads(Threads::Auto);
            clear.run(&mut bytes).expect("a clear without a target is refused by no profile");
            assert!(bytes.iter().all(|&byte| byte == 0));
            let copy = CopyOptions::new().profile(profile).reuse(reuse).threads(Threads::Auto);
            copy.run(&mut bytes, &SOURCE[..len]).expect("nor is such a copy");
            assert!(bytes == SOURCE[..len]);
        }
    }
}
