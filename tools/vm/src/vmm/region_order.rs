//! The order in which a VMM has mapped the regions of its VM.
//!
//! The kernel merges regions that lie beside each other, and only the VMM's message tells them
//! apart. So the pager keeps the order with the userfaultfd, for the VM's checkpoints. The place is
//! the number of the signal that would announce that the descriptor is ready (`F_SETSIG`): it belongs
//! to the open file that VMM and pager share, lasts as long as the VM, and has no effect without
//! `O_ASYNC`.
#![allow(unsafe_code)]

use std::os::fd::AsRawFd;

use rustix::io::{self, Errno};

use crate::firecracker::layout::{Layout, Region};
use crate::vmm::userfaultfd::Userfaultfd;

/// From `linux/fcntl.h`.
const F_SETSIG: libc::c_int = 10;
const F_GETSIG: libc::c_int = 11;

/// The number of a descriptor that has no order.
const NONE: libc::c_int = 0;

/// The order of the regions' addresses, when they are in the order of their offsets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub(crate) enum RegionOrder {
    /// Each region lies above the one before.
    Ascending = 63,
    /// Each region lies below the one before.
    Descending = 64,
}

impl RegionOrder {
    /// `None` if there are fewer than two regions, or if they are in another order.
    pub(crate) fn of(layout: &Layout) -> Option<Self> {
        let regions = layout.regions();
        let are = |is_before: fn(&Region, &Region) -> bool| {
            regions.len() > 1 && regions.windows(2).all(|pair| is_before(&pair[0], &pair[1]))
        };
        if are(|one, next| one.start < next.start) {
            Some(Self::Ascending)
        } else {
            are(|one, next| one.start > next.start).then_some(Self::Descending)
        }
    }
}

impl Userfaultfd {
    /// Keeps the order for as long as the VM exists, unless the VMM uses the place itself.
    pub(crate) fn keep_order(&self, order: RegionOrder) {
        if self.signal_number(F_GETSIG, 0) == Ok(NONE) {
            // Without it, checkpoints of this VM are refused if its regions are merged.
            let _ = self.signal_number(F_SETSIG, order as libc::c_int);
        }
    }

    /// The order that a pager has kept.
    #[must_use]
    pub(crate) fn region_order(&self) -> Option<RegionOrder> {
        let number = self.signal_number(F_GETSIG, 0).ok()?;
        [RegionOrder::Ascending, RegionOrder::Descending]
            .into_iter()
            .find(|&order| order as libc::c_int == number)
    }

    fn signal_number(
        &self,
        command: libc::c_int,
        argument: libc::c_int,
    ) -> io::Result<libc::c_int> {
        // SAFETY: both commands take a number at most, and no pointer.
        match unsafe { libc::fcntl(self.as_fd().as_raw_fd(), command, argument) } {
            -1 => {
                Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL))
            }
            number => Ok(number),
        }
    }
}

#[cfg(test)]
mod tests {
    use hugekit_sys::userfaultfd as calls;

    use super::*;
    use crate::firecracker::layout::base_page;

    fn order(starts: &[u64]) -> Option<RegionOrder> {
        let len = base_page();
        let regions = starts.iter().zip(0..).map(|(start, index)| Region {
            start: start * len,
            len,
            offset: index * len,
        });
        RegionOrder::of(&Layout::new(regions.collect(), len))
    }

    #[test]
    fn order_is_that_of_addresses_by_offset() {
        assert_eq!(order(&[1, 5, 7]), Some(RegionOrder::Ascending));
        assert_eq!(order(&[7, 5]), Some(RegionOrder::Descending));
        assert_eq!(order(&[5, 7, 1]), None);
        assert_eq!(order(&[5]), None);
    }

    #[test]
    fn order_is_kept_with_the_open_file() {
        for order in [RegionOrder::Ascending, RegionOrder::Descending] {
            let descriptor = calls::new_user_mode_only().unwrap();
            calls::enable(&descriptor, 0).unwrap();
            let of_vmm = descriptor.try_clone().unwrap();
            let pager = Userfaultfd::new(descriptor).unwrap();
            assert_eq!(pager.region_order(), None);
            pager.keep_order(order);
            drop(pager);
            assert_eq!(Userfaultfd::new(of_vmm).unwrap().region_order(), Some(order));
        }
    }

    #[test]
    fn number_that_the_vmm_uses_is_left() {
        let descriptor = calls::new_user_mode_only().unwrap();
        calls::enable(&descriptor, 0).unwrap();
        let vmm = Userfaultfd::new(descriptor).unwrap();
        vmm.signal_number(F_SETSIG, libc::SIGUSR1).unwrap();
        vmm.keep_order(RegionOrder::Ascending);
        assert_eq!(vmm.signal_number(F_GETSIG, 0), Ok(libc::SIGUSR1));
        assert_eq!(vmm.region_order(), None);
    }
}
