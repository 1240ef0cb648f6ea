//! The layout of a VM's memory, kept for checkpoints after the VM's pager has left.
//!
//! The kernel merges adjacent regions, and other mappings of the VMM join them. Only the VMM's
//! message contains the start of each region and its part of the memory file. So the pager sends
//! this message back over the connection. The VMM, which never reads, keeps the message in its
//! socket as long as it runs. No file has to be found or removed, and the end of a pager loses
//! nothing.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use rustix::net::{RecvFlags, SendFlags, recv, send};
use serde::{Deserialize, Serialize};

use crate::vmm::Layout;
use crate::vmm::Process;

/// The first bytes of the message.
const MAGIC: &[u8] = b"HKLAYOUT1 ";

/// The highest length of a message in bytes. 64 regions need a tenth of it.
const LONGEST: usize = 64 << 10;

#[derive(Serialize, Deserialize)]
struct Kept {
    layout: Layout,
}

/// Sends the layout to the VMM. If the VMM's socket has no room now, the layout is not kept:
/// checkpoints are then refused unless the regions can be determined otherwise.
pub(crate) fn keep(connection: &UnixStream, layout: &Layout) {
    let Ok(text) = serde_json::to_vec(&Kept { layout: layout.clone() }) else { return };
    let message = [MAGIC, &text].concat();
    let _ = send(connection, &message, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
}

/// Finds the layout that a VMM keeps; `None` if it keeps no layout.
///
/// # Errors
/// An error if this process may not inspect the VMM's descriptors.
pub(crate) fn find(process: &Process) -> io::Result<Option<Layout>> {
    let links = process.links()?.into_iter();
    let sockets = links.filter(|(_, link)| link.to_string_lossy().starts_with("socket:"));
    let mut kept = sockets.filter_map(|(number, _)| kept_in(&process.copy(number).ok()?));
    // A VMM has one VM, and connects once for it.
    Ok(kept.next())
}

fn kept_in(socket: &OwnedFd) -> Option<Layout> {
    let mut room = vec![MaybeUninit::uninit(); LONGEST];
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    let ((message, _), _) = recv(socket, &mut room, flags).ok()?;
    let text = message.strip_prefix(MAGIC)?;
    let kept: Kept = serde_json::from_slice(text).ok()?;
    kept.layout.checked(u64::MAX).ok()
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::vmm::Region;
    use crate::vmm::base_page;

    fn layout() -> Layout {
        let page = base_page();
        let upper = Region { start: 9 * page, len: 3 * page, offset: 0 };
        let lower = Region { start: 6 * page, len: 3 * page, offset: 3 * page };
        Layout::new(vec![upper, lower], page)
    }

    #[test]
    fn layout_is_kept_when_the_pager_has_ended_and_is_read_again_and_again() {
        let (pager, vmm) = UnixStream::pair().unwrap();
        let socket = OwnedFd::from(vmm);
        assert_eq!(kept_in(&socket), None);
        keep(&pager, &layout());
        drop(pager);
        for _ in 0..2 {
            assert_eq!(kept_in(&socket), Some(layout()));
        }
    }

    #[test]
    fn other_messages_and_layouts_that_make_no_sense_are_none() {
        let page = base_page();
        let twice = Region { start: page, len: page, offset: 0 };
        let kept = Kept { layout: Layout::new(vec![twice, twice], page) };
        let nonsense = [MAGIC, &serde_json::to_vec(&kept).unwrap()].concat();
        for message in [&b"HTTP/1.1 200"[..], MAGIC, &nonsense] {
            let (mut pager, vmm) = UnixStream::pair().unwrap();
            pager.write_all(message).unwrap();
            assert_eq!(kept_in(&vmm.into()), None);
        }
    }

    #[test]
    fn vmm_that_reads_nothing_keeps_no_pager_waiting() {
        let (pager, vmm) = UnixStream::pair().unwrap();
        pager.set_nonblocking(true).unwrap();
        while (&pager).write(&[0; 4096]).is_ok() {}
        pager.set_nonblocking(false).unwrap();
        keep(&pager, &layout());
        drop(vmm);
        keep(&pager, &layout());
    }
}
