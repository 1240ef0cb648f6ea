//! A control group of a test's own, of either version, where this process may make one.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use hugekit::pool::Backing;

use super::daemon::PATIENCE;

/// What counts memory of a backing.
pub(crate) fn controller(backing: Backing) -> &'static str {
    if backing.is_reserved() { "hugetlb" } else { "memory" }
}

/// A group below the root of its hierarchy. What is in it ends with this value.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) folder: PathBuf,
    is_unified: bool,
    /// The controller that had to be switched on for it.
    switched_on: Option<&'static str>,
}

impl Group {
    /// Why there can be none here.
    pub(crate) fn lacking(controller: &'static str) -> Option<String> {
        Self::new(controller).err()
    }

    /// A group that counts, or, where no controller is named, one that can be frozen.
    pub(crate) fn new(controller: &'static str) -> Result<Self, String> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").map_err(|e| e.to_string())?;
        if let Some(root) = mounts.lines().find_map(|line| first_version(line, controller)) {
            return Self::make(&root, false, None);
        }
        let root = mounts.lines().find_map(second_version);
        let root = root.ok_or_else(|| format!("no control groups have {controller:?}"))?;
        let switched_on = switch_on(&root, controller)?;
        Self::make(&root, true, switched_on)
    }

    fn make(
        root: &Path,
        is_unified: bool,
        switched_on: Option<&'static str>,
    ) -> Result<Self, String> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let folder = root.join(format!("hugekit-test-{}-{number}", std::process::id()));
        fs::create_dir(&folder).map_err(|error| {
            format!("no control group can be made in {}: {error}", root.display())
        })?;
        Ok(Self { folder, is_unified, switched_on })
    }

    /// Bytes that it is charged for.
    pub(crate) fn charged(&self, backing: Backing) -> u64 {
        let file = match (backing.is_reserved(), self.is_unified) {
            (false, true) => "memory.current",
            (false, false) => "memory.usage_in_bytes",
            (true, true) => "hugetlb.2MB.current",
            (true, false) => "hugetlb.2MB.usage_in_bytes",
        };
        fs::read_to_string(self.folder.join(file)).unwrap().trim().parse().unwrap()
    }

    /// Waits until it is charged for less.
    pub(crate) fn until_charged_below(&self, backing: Backing, bytes: u64) {
        let since = Instant::now();
        while self.charged(backing) >= bytes {
            assert!(since.elapsed() < PATIENCE, "{} are charged", self.charged(backing));
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }

    /// Allows it so much memory, and no swap in its place.
    pub(crate) fn limit(&self, bytes: usize) {
        let write = |file: &str, value: String| fs::write(self.folder.join(file), value);
        if self.is_unified {
            write("memory.max", bytes.to_string()).unwrap();
            // Not there where the machine has no swap.
            let _ = write("memory.swap.max", "0".to_owned());
        } else {
            write("memory.limit_in_bytes", bytes.to_string()).unwrap();
            let _ = write("memory.memsw.limit_in_bytes", bytes.to_string());
        }
    }

    /// Stops everything in it, or lets it go on.
    pub(crate) fn freeze(&self, frozen: bool) {
        fs::write(self.folder.join("cgroup.freeze"), u8::from(frozen).to_string()).unwrap();
    }

    pub(crate) fn take_in(&self, process: u32) {
        fs::write(self.folder.join("cgroup.procs"), process.to_string()).unwrap();
    }

    /// How many processes are in it.
    pub(crate) fn members(&self) -> usize {
        let members = fs::read_to_string(self.folder.join("cgroup.procs")).unwrap();
        members.lines().count()
    }

    /// The same command, by a process that has joined the group before.
    pub(crate) fn around(&self, command: &Command) -> Command {
        let mut shell = Command::new("sh");
        shell.args(["-c", "echo $$ > \"$0\" && exec \"$@\""]).arg(self.folder.join("cgroup.procs"));
        shell.arg(command.get_program()).args(command.get_args());
        shell
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if self.is_unified {
            let _ = fs::write(self.folder.join("cgroup.freeze"), "0");
        }
        let since = Instant::now();
        // Processes that have ended are in it until they are waited for.
        while fs::remove_dir(&self.folder).is_err() {
            if since.elapsed() > PATIENCE {
                eprintln!("{} is left behind", self.folder.display());
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        if let (Some(controller), Some(root)) = (self.switched_on, self.folder.parent()) {
            let _ = fs::write(root.join("cgroup.subtree_control"), format!("-{controller}"));
        }
    }
}

/// The root of the hierarchy of version 1 that has the controller, from a line of mountinfo.
fn first_version(line: &str, controller: &str) -> Option<PathBuf> {
    let (mount, kind) = line.split_once(" - cgroup ")?;
    let options = kind.split(' ').nth(1)?;
    let has = !controller.is_empty() && options.split(',').any(|option| option == controller);
    has.then(|| mount.split(' ').nth(4).map(PathBuf::from))?
}

fn second_version(line: &str) -> Option<PathBuf> {
    let (mount, _) = line.split_once(" - cgroup2 ")?;
    mount.split(' ').nth(4).map(PathBuf::from)
}

/// Has groups below the root have the controller; returns it if they had not.
fn switch_on(root: &Path, controller: &'static str) -> Result<Option<&'static str>, String> {
    let has = |file: &str| {
        let text = fs::read_to_string(root.join(file)).unwrap_or_default();
        text.split_ascii_whitespace().any(|word| word == controller)
    };
    if controller.is_empty() || has("cgroup.subtree_control") {
        return Ok(None);
    }
    if !has("cgroup.controllers") {
        return Err(format!("no control groups have {controller}"));
    }
    let switched = fs::write(root.join("cgroup.subtree_control"), format!("+{controller}"));
    let refused = |error| format!("{controller} cannot be switched on for groups: {error}");
    switched.map(|()| Some(controller)).map_err(refused)
}
