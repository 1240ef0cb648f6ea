//! The folder of a fork. It contains one socket, at which the children's VMMs request their memory.

use std::io;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use crate::vmm::hidden::{Hidden, LeftOver, Planned};

const SOCKET: &str = "memory.sock";

/// The folder before it is made.
#[derive(Debug)]
pub(crate) struct PlannedRoom {
    above: PathBuf,
    planned: Planned,
}

/// A folder that only this user may enter. A drop removes the folder.
#[derive(Debug)]
pub(crate) struct Room {
    socket: PathBuf,
    listener: UnixListener,
    _folder: Hidden,
}

impl PlannedRoom {
    pub(crate) fn new() -> io::Result<Self> {
        let above = std::env::temp_dir();
        let planned = Planned::new(&above, ".hugekit-fork", &[SOCKET])?;
        Ok(Self { above, planned })
    }

    pub(crate) fn left_over(&self) -> io::Result<LeftOver> {
        self.planned.left_over()
    }

    pub(crate) fn make(self) -> io::Result<Room> {
        let socket = self.above.join(self.planned.name()).join(SOCKET);
        let folder = self.planned.make()?;
        let listener = UnixListener::bind(&socket)?;
        listener.set_nonblocking(true)?;
        Ok(Room { socket, listener, _folder: folder })
    }
}

impl Room {
    pub(crate) fn listener(&self) -> &UnixListener {
        &self.listener
    }

    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }
}
