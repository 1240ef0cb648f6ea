//! A control group of a test's own, of either version, where this process may make one.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use hugekit::pool::Backing;

/// The longest wait for the kernel to let go of a process or of memory.
const PATIENCE: Duration = Duration::from_secs(60);

/// Returns the controller that counts memory of a backing.
pub fn controller(backing: Backing) -> &'static str {
    if backing.is_reserved() { "hugetlb" } else { "memory" }
}

/// A group below the root of its hierarchy. It is removed with this value, when its processes have ended.
#[derive(Debug)]
pub struct ControlGroup {
    pub folder: PathBuf,
    controller: &'static str,
    is_unified: bool,
    /// The controller that had to be switched on for it.
    switched_on: Option<&'static str>,
}

impl ControlGroup {
    /// Returns the reason why there can be none here.
    pub fn lacking(controller: &'static str) -> Option<String> {
        Self::new(controller).err()
    }

    /// A group that counts, or, where no controller is named, one that can be frozen.
    pub fn new(controller: &'static str) -> Result<Self, String> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").map_err(|e| e.to_string())?;
        if let Some(root) = mounts.lines().find_map(|line| first_version(line, controller)) {
            return Self::make(&root, controller, false, None);
        }
        let root = mounts.lines().find_map(second_version);
        let root = root.ok_or_else(|| format!("no control groups have {controller:?}"))?;
        let switched_on = switch_on(&root, controller)?;
        Self::make(&root, controller, true, switched_on)
    }

    fn make(
        root: &Path,
        controller: &'static str,
        is_unified: bool,
        switched_on: Option<&'static str>,
    ) -> Result<Self, String> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let folder = root.join(format!("hugekit-test-{}-{number}", std::process::id()));
        fs::create_dir(&folder).map_err(|error| {
            format!("no control group can be made in {}: {error}", root.display())
        })?;
        Ok(Self { folder, controller, is_unified, switched_on })
    }

    /// Bytes that it is charged for.
    pub fn charged(&self, backing: Backing) -> u64 {
        let file = match (backing.is_reserved(), self.is_unified) {
            (false, true) => "memory.current",
            (false, false) => "memory.usage_in_bytes",
            (true, true) => "hugetlb.2MB.current",
            (true, false) => "hugetlb.2MB.usage_in_bytes",
        };
        fs::read_to_string(self.folder.join(file)).unwrap().trim().parse().unwrap()
    }

    /// Waits until it is charged for less.
    pub fn until_charged_below(&self, backing: Backing, bytes: u64) {
        let since = Instant::now();
        while self.charged(backing) >= bytes {
            assert!(since.elapsed() < PATIENCE, "{} are charged", self.charged(backing));
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Allows it so much memory, and no swap in its place.
    pub fn limit(&self, bytes: usize) {
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
    pub fn freeze(&self, frozen: bool) {
        fs::write(self.folder.join("cgroup.freeze"), u8::from(frozen).to_string()).unwrap();
    }

    pub fn take_in(&self, process: u32) {
        fs::write(self.folder.join("cgroup.procs"), process.to_string()).unwrap();
    }

    /// Runs a function while this process is in the group: processes that it starts stay there.
    ///
    /// # Panics
    /// The kernel refuses to move the process.
    pub fn with_this_process<T>(&self, run: impl FnOnce() -> T) -> T {
        let own = std::process::id();
        let before = self.group_before();
        self.take_in(own);
        let done = run();
        fs::write(before.join("cgroup.procs"), own.to_string()).unwrap();
        done
    }

    /// The group that this process is in, of this hierarchy.
    fn group_before(&self) -> PathBuf {
        let groups = fs::read_to_string("/proc/self/cgroup").unwrap();
        let root = self.folder.parent().unwrap();
        let of_hierarchy = |line: &str| {
            let mut fields = line.splitn(3, ':');
            let (number, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
            let is_of = match self.is_unified {
                true => number == "0",
                false => controllers.split(',').any(|name| self.controller == name),
            };
            is_of.then(|| root.join(path.trim_start_matches('/')))
        };
        groups.lines().find_map(of_hierarchy).unwrap()
    }

    /// Returns the number of processes in it.
    pub fn members(&self) -> usize {
        let members = fs::read_to_string(self.folder.join("cgroup.procs")).unwrap();
        members.lines().count()
    }

    /// The same command, by a process that has joined the group before.
    pub fn around(&self, command: &Command) -> Command {
        let mut shell = Command::new("sh");
        shell.args(["-c", "echo $$ > \"$0\" && exec \"$@\""]).arg(self.folder.join("cgroup.procs"));
        shell.arg(command.get_program()).args(command.get_args());
        shell
    }
}

impl Drop for ControlGroup {
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
            std::thread::sleep(Duration::from_millis(5));
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
