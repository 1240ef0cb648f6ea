//! The lock of the settings of the machine: one lab at a time may change them.
//!
//! A lock on a file, which the kernel lets go of when its holder ends, however that was. The file says who
//! holds it.

use std::fs::{self, File, Permissions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::failed;
use crate::measure::{LabError, Observer};

const NAME: &str = "settings.lock";

/// Between two looks at a lock that another lab holds.
const PAUSE: Duration = Duration::from_millis(50);

/// The lock of the lab that may change settings. The drop releases it.
#[derive(Debug)]
pub(super) struct SettingsLock(#[expect(dead_code, reason = "the lock is let go of with it")] File);

impl SettingsLock {
    /// Waits for so long.
    pub(super) fn wait(
        folder: &Path,
        patience: Duration,
        observer: &dyn Observer,
    ) -> Result<Self, LabError> {
        let path = folder.join(NAME);
        fs::create_dir_all(folder).map_err(refused(folder))?;
        let mut file = lock_file(&path).map_err(refused(&path))?;
        let since = Instant::now();
        while !lock(&file).map_err(failed("lock", &path))? {
            let holder = holder(&mut file);
            if since.elapsed() >= patience {
                return Err(LabError::Busy { holder, waited: patience.as_secs() });
            }
            observer.check()?;
            observer.begin(&format!("waiting for {holder}"));
            std::thread::sleep(PAUSE);
        }
        say_who(&mut file).map_err(failed("write to", &path))?;
        Ok(Self(file))
    }
}

/// Only its owner may open it: who can read a file can lock it.
fn lock_file(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    let file =
        options.read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
    file.set_permissions(Permissions::from_mode(0o600))?;
    Ok(file)
}

fn refused(path: &Path) -> impl Fn(io::Error) -> LabError {
    move |cause| match cause.kind() {
        io::ErrorKind::PermissionDenied => {
            LabError::NotRoot { path: path.display().to_string(), source: cause }
        }
        _ => failed("write to", path)(cause),
    }
}

fn lock(file: &File) -> io::Result<bool> {
    match flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK | Errno::INTR) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

/// For labs that wait.
fn say_who(file: &mut File) -> io::Result<()> {
    let command: Vec<String> =
        std::env::args_os().map(|word| hugekit_machine::plain(&word.to_string_lossy())).collect();
    file.set_len(0)?;
    file.rewind()?;
    write!(file, "process {}: {}", std::process::id(), command.join(" "))
}

fn holder(file: &mut File) -> String {
    let mut text = String::new();
    let read = file.rewind().and_then(|()| file.take(500).read_to_string(&mut text));
    match read {
        Ok(1..) => hugekit_machine::plain(&text),
        _ => "another process".to_owned(),
    }
}
