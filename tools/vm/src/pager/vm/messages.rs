//! Messages of the kernel: faults are queued, and released pages are marked.
//!
//! The same thread reads messages and supplies pages. So no page is being supplied from the memory
//! file while the message about its release is read.

use std::sync::atomic::Ordering;

use super::demand::Server;
use super::{ServedVm, Stop, VmError, pages_of};
use crate::vmm::userfaultfd::{MESSAGE_WORDS, Message};

impl Server<'_> {
    /// Reads all available messages.
    pub(super) fn read_messages(&mut self) -> Result<(), Stop> {
        let room = self.vm.state.messages();
        loop {
            let read = self.vm.faults.read(room);
            let read = read.map_err(|errno| Stop::Failed(VmError::Thread(errno.into())))?;
            for message in self.vm.take_messages(read) {
                if let Message::Fault(address) = message {
                    self.faults.push_back(address);
                    self.answered += 1;
                }
            }
            if read < room.len() / MESSAGE_WORDS {
                return Ok(());
            }
        }
    }
}

impl ServedVm {
    /// Marks released pages in messages that an earlier pager had read and perhaps not processed.
    pub(crate) fn replay(&self) {
        self.take_messages(self.state.messages().len() / MESSAGE_WORDS);
    }

    fn take_messages(&self, count: usize) -> Vec<Message> {
        let room = self.state.messages();
        let mut taken = Vec::new();
        for words in room.chunks_exact(MESSAGE_WORDS).take(count) {
            let message = Message::of_words(words);
            if let Some(Message::Removed { start, end }) = message {
                self.mark_removed(start, end);
            }
            // Behind the bits that it stands for.
            words[0].store(0, Ordering::Release);
            taken.extend(message);
        }
        taken
    }

    fn mark_removed(&self, start: u64, end: u64) {
        for offsets in self.layout.offsets_of(start..end) {
            self.state.removed().set_all(pages_of(offsets));
        }
    }
}
