//! The images that the broker holds, by name and by the account that has loaded them.
//!
//! Each account has its own names, so no user can take a name away from another user or replace the
//! image of another user. Only the broker's own user loads images for all users. A dropped image
//! counts against its account's quota until its file is gone: until no process has a descriptor or
//! a mapping of the file.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::time::Instant;

use hugekit_image::{FileIdentity, Image, ImageError};
use hugekit_lease::protocol::{ImageFacts, ImageName, ImageRow, MOST_IMAGES, Refusal};

use crate::ledger::Claim;
use crate::watch::Watched;

/// The highest number of images of one account.
const MOST_OF_USER: usize = 64;

/// The highest number of images of all accounts except root's.
const MOST_OF_OTHERS: usize = MOST_IMAGES - MOST_OF_USER;

/// The user that requests a list of images.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Viewer {
    pub(crate) account: u32,
    /// True for root and for the broker's own user.
    pub(crate) sees_all: bool,
}

/// A loaded image.
#[derive(Debug)]
pub(crate) struct HeldImage {
    pub(crate) name: ImageName,
    pub(crate) uid: u32,
    pub(crate) is_for_all: bool,
    pub(crate) facts: ImageFacts,
    pub(crate) identity: FileIdentity,
    pub(crate) claim: Claim,
    pub(crate) since: Instant,
}

/// The images that the broker holds, and dropped images that processes still use.
#[derive(Debug, Default)]
pub(crate) struct Images {
    held: BTreeMap<Watched, (HeldImage, Image)>,
    dropped: BTreeMap<Watched, HeldImage>,
}

impl Images {
    /// Returns the reason why an account may load no further image of that name, while others are
    /// `loading`; `None` if it may.
    pub(crate) fn refusal(
        &self,
        account: u32,
        name: ImageName,
        loading: impl Iterator<Item = (u32, Option<ImageName>)>,
    ) -> Option<Refusal> {
        let loading: Vec<_> = loading.collect();
        if loading.contains(&(account, Some(name))) || self.own(account, name).is_some() {
            return Some(Refusal::ImageExists);
        }
        let dropped = self.dropped.values().map(|held| held.claim.account);
        let held = self.held.values().map(|(held, _)| held.claim.account);
        let accounts = held.chain(dropped).chain(loading.iter().map(|&(account, _)| account));
        let (mut of_user, mut of_others) = (0, 0);
        for of in accounts {
            of_user += usize::from(of == account);
            of_others += usize::from(of != 0);
        }
        let is_full = of_user >= MOST_OF_USER || account != 0 && of_others >= MOST_OF_OTHERS;
        let (most, most_of_user) = (MOST_IMAGES as u64, MOST_OF_USER as u64);
        is_full.then_some(Refusal::TooManyImages { most, most_of_user })
    }

    pub(crate) fn insert(&mut self, watched: Watched, held: HeldImage, image: Image) {
        self.held.insert(watched, (held, image));
    }

    /// Opens the image of a name that an account may use: the account's own image, or else an image
    /// for all users.
    pub(crate) fn open(
        &self,
        account: u32,
        name: ImageName,
    ) -> Option<Result<(OwnedFd, ImageFacts), ImageError>> {
        let for_all =
            |(_, (held, _)): &(&Watched, &(HeldImage, Image))| held.name == name && held.is_for_all;
        let own = self.own(account, name).and_then(|watched| self.held.get_key_value(&watched));
        let (_, (held, image)) = own.or_else(|| self.held.iter().find(for_all))?;
        Some(image.open_again().map(|file| (file, held.facts)))
    }

    fn own(&self, account: u32, name: ImageName) -> Option<Watched> {
        let is_it = |held: &HeldImage| held.claim.account == account && held.name == name;
        self.held.iter().find(|(_, (held, _))| is_it(held)).map(|(&watched, _)| watched)
    }

    /// Drops an image: the viewer's own, or another account's if the viewer sees only one image of
    /// this name. Returns true if there was an image.
    pub(crate) fn drop(&mut self, viewer: Viewer, name: ImageName) -> bool {
        let mut others = self.held.iter().filter(|(_, (held, _))| held.name == name);
        let other = match (others.next(), others.next()) {
            (Some((&watched, _)), None) if viewer.sees_all => Some(watched),
            _ => None,
        };
        let found = self.own(viewer.account, name).or(other);
        let Some((watched, (held, _))) = found.and_then(|found| self.held.remove_entry(&found))
        else {
            return false;
        };
        self.dropped.insert(watched, held);
        true
    }

    /// Returns the claim of an image whose file is gone, to be withdrawn.
    pub(crate) fn record_end(&mut self, watched: Watched) -> Option<Claim> {
        self.dropped.remove(&watched).map(|held| held.claim)
    }

    /// Returns the images that a viewer may see, the oldest first.
    pub(crate) fn rows(&self, viewer: Viewer) -> Vec<ImageRow> {
        let is_seen = |held: &&HeldImage| {
            viewer.sees_all || held.is_for_all || held.claim.account == viewer.account
        };
        let held = self.held.values().map(|(held, image)| (held, Some(image)));
        let all = held.chain(self.dropped.values().map(|held| (held, None)));
        let mut seen: Vec<_> = all.filter(|(held, _)| is_seen(held)).collect();
        seen.sort_by_key(|(held, _)| held.since);
        seen.into_iter().map(|(held, image)| held.row(image)).collect()
    }
}

impl HeldImage {
    /// Returns the row of an image. If the broker has a descriptor of it, the populated bytes are
    /// read now, because processes that read holes populate them.
    fn row(&self, image: Option<&Image>) -> ImageRow {
        let FileIdentity { device, inode } = self.identity;
        let present = image.and_then(|image| image.present().ok()).unwrap_or(self.facts.present);
        ImageRow {
            name: self.name,
            facts: ImageFacts { present, ..self.facts },
            device,
            inode,
            uid: self.uid,
            is_for_all: self.is_for_all,
            is_dropped: image.is_none(),
            age_ms: u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX),
        }
    }
}
