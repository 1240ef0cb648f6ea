//! Features of this kernel that an older kernel does not have are hidden, so that a test runs as on
//! the older kernel.
//!
//! `HUGEKIT_AS_LINUX=6.1` in the environment names the older release. If a newer kernel is not
//! asked for its new features, it behaves like an older one. Behaviour that only an older kernel
//! has is tested in a guest that runs it.

use std::sync::OnceLock;

/// Features that only newer kernels have, and the release that introduced each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Novelty {
    /// `PAGEMAP_SCAN`.
    PagemapScan,
    /// `UFFDIO_CONTINUE_MODE_WP`.
    ProtectedContinue,
}

impl Novelty {
    const fn since(self) -> Release {
        match self {
            Self::PagemapScan => Release(6, 7),
            Self::ProtectedContinue => Release(6, 4),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Release(u32, u32);

/// Features of userfaultfd(2), as bits, by the release that introduced them.
const FEATURES: [(Release, u64); 8] = [
    (Release(5, 13), 1 << 9),
    (Release(5, 14), 1 << 10),
    (Release(5, 18), 1 << 11),
    (Release(5, 19), 1 << 12),
    (Release(6, 4), 1 << 13),
    (Release(6, 6), 1 << 14),
    (Release(6, 7), 1 << 15),
    (Release(6, 8), 1 << 16),
];

/// Returns the pretended release. Not called in a signal handler.
fn pretended() -> Option<Release> {
    static PRETENDED: OnceLock<Option<Release>> = OnceLock::new();
    *PRETENDED.get_or_init(|| {
        let said = std::env::var("HUGEKIT_AS_LINUX").ok()?;
        let (major, minor) = said.split_once('.').expect("HUGEKIT_AS_LINUX=MAJOR.MINOR");
        let number = |text: &str| text.parse().expect("HUGEKIT_AS_LINUX=MAJOR.MINOR");
        Some(Release(number(major), number(minor)))
    })
}

/// Returns true if the kernel may be asked for the feature.
pub fn has(novelty: Novelty) -> bool {
    pretended().is_none_or(|release| novelty.since() <= release)
}

/// Returns those of these features that the kernel may be asked for.
pub fn features_of(there: u64) -> u64 {
    let Some(release) = pretended() else { return there };
    let newer = FEATURES.iter().filter(|(since, _)| *since > release);
    newer.fold(there, |there, (_, feature)| there & !feature)
}
