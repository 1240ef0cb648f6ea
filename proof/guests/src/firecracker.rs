//! A Firecracker process: boot the tiny guest, take a snapshot of it, restore it.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::fs::{FallocateFlags, fallocate};
use serde_json::{Value, json};

use crate::serial::Serial;
use crate::{api, first_cpu, guest};

const VARIABLE: &str = "HUGEKIT_FIRECRACKER";

/// The longest time until the API of a Firecracker answers.
const START: Duration = Duration::from_secs(60);

/// The program that the environment names, or else the one on `PATH`; `None` if there is neither.
#[must_use]
pub fn program() -> Option<PathBuf> {
    let named = std::env::var_os(VARIABLE).filter(|path| !path.is_empty());
    named.map(PathBuf::from).or_else(|| on_path(&std::env::var_os("PATH")?))
}

/// The version that the program names, such as `[1, 12]`.
#[must_use]
pub fn version() -> Option<[u32; 2]> {
    let output = Command::new(program()?).arg("--version").output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let version = text.lines().next()?.strip_prefix("Firecracker v")?;
    let mut numbers = version.split('.').map_while(|number| number.parse().ok());
    Some([numbers.next()?, numbers.next()?])
}

fn on_path(folders: &OsStr) -> Option<PathBuf> {
    let programs = std::env::split_paths(folders).map(|folder| folder.join("firecracker"));
    programs.into_iter().find(|program| program.is_file())
}

/// Returns the reason if no guest can run here.
#[must_use]
pub fn lacking() -> Option<String> {
    let Some(program) = program() else {
        return Some(format!("{VARIABLE} names no Firecracker, and PATH has none"));
    };
    if !program.is_file() {
        return Some(format!("{VARIABLE}: there is no file {}", program.display()));
    }
    lacking_guest()
}

/// Returns the reason if no VMM can run the tiny guest here.
pub(crate) fn lacking_guest() -> Option<String> {
    if guest::elf().is_none() {
        return Some("the tiny guest is for x86-64".to_owned());
    }
    let kvm = fs::OpenOptions::new().read(true).write(true).open("/dev/kvm");
    kvm.err().map(|error| format!("/dev/kvm cannot be opened: {error}"))
}

/// The pages of a guest's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    Base,
    Hugetlb2M,
}

impl Pages {
    fn name(self) -> &'static str {
        match self {
            Self::Base => "None",
            Self::Hugetlb2M => "2M",
        }
    }
}

/// The files of a snapshot.
#[derive(Clone, Debug)]
pub struct Snapshot {
    pub state: PathBuf,
    pub memory: PathBuf,
}

impl Snapshot {
    /// With these names in a folder.
    #[must_use]
    pub fn in_folder(folder: &Path) -> Self {
        Self { state: folder.join("state.bin"), memory: folder.join("memory.bin") }
    }
}

/// A process, which is killed when this is dropped.
#[derive(Debug)]
pub struct Firecracker {
    child: Child,
    api: PathBuf,
    pub serial: Serial,
}

impl Firecracker {
    /// Starts one with its files in this folder.
    pub fn start(folder: &Path, name: &str) -> io::Result<Self> {
        Self::start_prepared(folder, name, |_| ())
    }

    /// Does the same as [`start`](Self::start), but `prepare` may add to the command.
    pub fn start_prepared(
        folder: &Path,
        name: &str,
        prepare: impl FnOnce(&mut Command),
    ) -> io::Result<Self> {
        let mut firecracker = Self::spawn(folder, name, prepare)?;
        firecracker.await_api()?;
        Ok(firecracker)
    }

    /// Does the same as [`start_prepared`](Self::start_prepared), but its API may not answer yet.
    pub fn spawn(
        folder: &Path,
        name: &str,
        prepare: impl FnOnce(&mut Command),
    ) -> io::Result<Self> {
        let program = program().ok_or_else(|| io::Error::other("no Firecracker is named"))?;
        let api = folder.join(format!("{name}.api"));
        let _ = fs::remove_file(&api);
        let arguments = ["--api-sock".into(), api.clone().into_os_string()];
        let quiet = ["--id", name, "--level", "Off"].map(OsString::from);
        let mut command = Command::new(program);
        command.args(arguments).args(quiet);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        prepare(&mut command);
        let mut child = command.spawn()?;
        let serial = Serial::of(&mut child);
        Ok(Self { child, api, serial })
    }

    /// Its process.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// The socket of its API.
    #[must_use]
    pub fn api(&self) -> &Path {
        &self.api
    }

    /// Returns true if it has not ended.
    pub fn is_running(&mut self) -> io::Result<bool> {
        Ok(self.child.try_wait()?.is_none())
    }

    /// Gives the guest a balloon, before it is booted.
    pub fn add_balloon(&self) -> io::Result<()> {
        self.put("/balloon", &json!({"amount_mib": 0, "deflate_on_oom": false}))
    }

    /// Gives the guest a vsock that listens at this socket, before it is booted.
    pub fn add_vsock(&self, socket: &Path) -> io::Result<()> {
        self.put("/vsock", &json!({"guest_cid": 3, "uds_path": socket}))
    }

    /// Gives the guest a disk in a file, before it is booted.
    pub fn add_disk(&self, id: &str, file: &Path, is_read_only: bool) -> io::Result<()> {
        let disk = json!({
            "drive_id": id, "path_on_host": file, "is_root_device": false, "is_read_only": is_read_only,
        });
        self.put(&format!("/drives/{id}"), &disk)
    }

    /// Gives the guest a network device at a tap, before it is booted.
    pub fn add_net(&self, id: &str, tap: &str) -> io::Result<()> {
        let net = json!({"iface_id": id, "host_dev_name": tap});
        self.put(&format!("/network-interfaces/{id}"), &net)
    }

    /// Boots the guest with this many MiB, and one virtual CPU.
    pub fn boot(&self, mebibytes: u64, pages: Pages) -> io::Result<()> {
        self.boot_with(mebibytes, pages, 1)
    }

    /// Does the same as [`boot`](Self::boot), with more virtual CPUs. The guest uses the second one if it is asked to
    /// touch memory [at once](crate::Request::TouchAtOnce).
    pub fn boot_with(&self, mebibytes: u64, pages: Pages, cpus: u32) -> io::Result<()> {
        let elf = guest::elf().ok_or_else(|| io::Error::other("the tiny guest is for x86-64"))?;
        let kernel = self.api.with_extension("elf");
        fs::write(&kernel, elf)?;
        let machine =
            json!({"vcpu_count": cpus, "mem_size_mib": mebibytes, "huge_pages": pages.name()});
        self.put("/machine-config", &machine)?;
        self.put("/boot-source", &json!({"kernel_image_path": kernel, "boot_args": ""}))?;
        self.put("/actions", &json!({"action_type": "InstanceStart"}))
    }

    /// The first byte of memory that the guest itself does not use.
    #[must_use]
    pub fn free_memory() -> u64 {
        guest::END
    }

    /// The address of the number of events of the guest's vsock, which has 2 bytes.
    #[must_use]
    pub fn events() -> u64 {
        guest::EVENTS
    }

    pub fn pause(&self) -> io::Result<()> {
        self.patch("/vm", &json!({"state": "Paused"}))
    }

    pub fn resume(&self) -> io::Result<()> {
        self.patch("/vm", &json!({"state": "Resumed"}))
    }

    /// Returns true if the API says that the guest is paused.
    pub fn is_paused(&self) -> io::Result<bool> {
        let answer = api::request(&self.api, "GET", "/", None)?;
        let answer: Value = serde_json::from_str(&answer)?;
        Ok(answer["state"] == "Paused")
    }

    /// Pauses the guest and saves all of it.
    pub fn save(&self, to: &Snapshot) -> io::Result<()> {
        self.save_as("Full", to)
    }

    /// Does the same as [`save`](Self::save), with holes in the memory file where the guest has no memory.
    pub fn save_with_holes(&self, to: &Snapshot) -> io::Result<()> {
        if version().is_none_or(|version| version > [1, 12]) {
            return self.save_as("Diff", to);
        }
        self.save(to)?;
        dig_holes(&to.memory)
    }

    fn save_as(&self, kind: &str, to: &Snapshot) -> io::Result<()> {
        first_cpu::await_end_of_output(self.pid())?;
        self.pause()?;
        self.create(kind, to)
    }

    /// Saves the guest, which is paused, in a snapshot of this kind: `Full` or `Diff`.
    pub fn create(&self, kind: &str, to: &Snapshot) -> io::Result<()> {
        let request = json!({
            "snapshot_type": kind, "snapshot_path": to.state, "mem_file_path": to.memory,
        });
        self.put("/snapshot/create", &request)
    }

    /// Restores a snapshot whose memory the handler at this socket serves.
    pub fn load_by_handler(&self, from: &Snapshot, socket: &Path, resume: bool) -> io::Result<()> {
        self.load(from, &json!({"backend_type": "Uffd", "backend_path": socket}), resume)
    }

    /// Restores a snapshot whose memory is mapped from this file.
    pub fn load_by_file(&self, from: &Snapshot, file: &Path, resume: bool) -> io::Result<()> {
        self.load(from, &in_file(file), resume)
    }

    /// Restores by a file, for whose mapping Firecracker advises huge pages (1.17), and resumes.
    pub fn load_by_advised_file(&self, from: &Snapshot, file: &Path) -> io::Result<()> {
        let mut request = load_request(from, &in_file(file), true);
        request["huge_pages"] = json!("Transparent");
        self.put("/snapshot/load", &request)
    }

    fn load(&self, from: &Snapshot, memory: &Value, resume: bool) -> io::Result<()> {
        self.put("/snapshot/load", &load_request(from, memory, resume))
    }

    pub fn put(&self, path: &str, body: &Value) -> io::Result<()> {
        api::request(&self.api, "PUT", path, Some(body)).map(drop)
    }

    pub fn patch(&self, path: &str, body: &Value) -> io::Result<()> {
        api::request(&self.api, "PATCH", path, Some(body)).map(drop)
    }

    /// Waits until its API answers.
    pub fn await_api(&mut self) -> io::Result<()> {
        let until = Instant::now() + START;
        while Instant::now() < until {
            if std::os::unix::net::UnixStream::connect(&self.api).is_ok() {
                return Ok(());
            }
            if let Some(status) = self.child.try_wait()? {
                return Err(io::Error::other(format!("Firecracker ended: {status}")));
            }
            sleep(Duration::from_millis(2));
        }
        Err(io::ErrorKind::TimedOut.into())
    }
}

fn load_request(from: &Snapshot, memory: &Value, resume: bool) -> Value {
    json!({"snapshot_path": from.state, "mem_backend": memory, "resume_vm": resume})
}

fn in_file(file: &Path) -> Value {
    json!({"backend_type": "File", "backend_path": file})
}

/// Gives the blocks of a file back that have nothing but zeroes.
fn dig_holes(path: &Path) -> io::Result<()> {
    const BLOCK: usize = 1 << 20;
    let file = fs::File::options().read(true).write(true).open(path)?;
    let mut block = vec![0; BLOCK];
    for at in (0..file.metadata()?.len()).step_by(BLOCK) {
        let len = file.read_at(&mut block, at)?;
        if block[..len].iter().all(|&byte| byte == 0) {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            fallocate(&file, flags, at, len as u64)?;
        }
    }
    Ok(())
}

impl Drop for Firecracker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_file(&self.api);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_program_of_that_name_is_found_on_path() {
        let folder = std::env::temp_dir().join(format!("hugekit-guests-{}", std::process::id()));
        let (empty, full) = (folder.join("empty"), folder.join("full"));
        for folder in [&empty, &full] {
            fs::create_dir_all(folder).unwrap();
        }
        // A folder of that name is no program.
        fs::create_dir_all(empty.join("firecracker")).unwrap();
        let path = std::env::join_paths([&empty, &full]).unwrap();
        assert_eq!(on_path(&path), None);
        let program = full.join("firecracker");
        fs::write(&program, "").unwrap();
        assert_eq!(on_path(&path), Some(program));
        fs::remove_dir_all(folder).unwrap();
    }
}
