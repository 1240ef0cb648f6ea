//! The folder of a fork: one socket, at which the children's VMMs ask for their memory.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::checkpoint::guard::LeftOvers;
use crate::checkpoint::options::ChildOptions;

/// A folder that only this user enters. It is removed when this is dropped. Its name is known
/// before it is made: a guard removes it if this process is killed.
#[derive(Debug)]
pub(crate) struct Room {
    folder: PathBuf,
    socket: PathBuf,
}

impl Room {
    pub(crate) fn plan() -> Self {
        // One thread has one fork at a time. Threads of other PID namespaces have other times.
        let thread = rustix::thread::gettid().as_raw_nonzero();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let name = format!(".hugekit-fork-{thread}-{}", now.as_nanos());
        let folder = std::env::temp_dir().join(name);
        Self { socket: folder.join("memory.sock"), folder }
    }

    /// Also the sockets that the children make.
    pub(crate) fn left_overs(&self, children: &[ChildOptions]) -> io::Result<LeftOvers> {
        let sockets = children.iter().map(|child| std::path::absolute(&child.api));
        let mut files: Vec<PathBuf> = sockets.collect::<io::Result<_>>()?;
        files.push(self.socket.clone());
        LeftOvers::new(&files, &self.folder)
    }

    pub(crate) fn listen(&self) -> io::Result<UnixListener> {
        DirBuilder::new().mode(0o700).create(&self.folder)?;
        let listener = UnixListener::bind(&self.socket)?;
        listener.set_nonblocking(true)?;
        Ok(listener)
    }

    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.socket);
        let _ = fs::remove_dir(&self.folder);
    }
}
