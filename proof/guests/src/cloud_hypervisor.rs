//! A Cloud Hypervisor process: boot the tiny guest, take a snapshot of it, restore it.

use std::fs;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::serial::Serial;
use crate::{api, first_cpu, guest, nested_state};

const VARIABLE: &str = "HUGEKIT_CLOUD_HYPERVISOR";

/// The longest time until the API of a VMM answers or its serial port listens.
const START: Duration = Duration::from_secs(60);

/// The program; `None` if the environment names none.
#[must_use]
pub fn program() -> Option<PathBuf> {
    std::env::var_os(VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from)
}

fn needed() -> io::Result<PathBuf> {
    program().ok_or_else(|| io::Error::other("no Cloud Hypervisor is named"))
}

/// Returns the reason if no guest can run here.
#[must_use]
pub fn lacking() -> Option<String> {
    let Some(program) = program() else {
        return Some(format!("{VARIABLE} names no Cloud Hypervisor"));
    };
    if !program.is_file() {
        return Some(format!("{VARIABLE}: there is no file {}", program.display()));
    }
    crate::firecracker::lacking_guest()
}

/// A process, which is killed when this is dropped.
#[derive(Debug)]
pub struct CloudHypervisor {
    child: Child,
    api: PathBuf,
    /// The socket of its guest's serial port.
    serial: PathBuf,
}

impl CloudHypervisor {
    /// Starts one without a VM, with its files in this folder.
    pub fn start(folder: &Path, name: &str) -> io::Result<Self> {
        Self::start_by(Command::new(needed()?), folder, name, false)
    }

    /// Starts one in a mount namespace, in which this folder is another one. Its [API](Self::api)
    /// has a path below the root of its process.
    pub fn start_below_a_mount(folder: &Path, name: &str) -> io::Result<Self> {
        const MOUNT: &str = r#"mount -t tmpfs none "$0" && exec "$@""#;
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", MOUNT]).arg(folder).arg(needed()?);
        Self::start_by(command, folder, name, true)
    }

    /// The path below the root of its process.
    fn seen(&self, path: &Path) -> PathBuf {
        Path::new(&format!("/proc/{}/root", self.pid()))
            .join(path.strip_prefix("/").unwrap_or(path))
    }

    fn start_by(
        mut command: Command,
        folder: &Path,
        name: &str,
        is_hidden: bool,
    ) -> io::Result<Self> {
        let (api, serial) = (api_of(folder, name), serial_of(folder, name));
        for path in [&api, &serial] {
            let _ = fs::remove_file(path);
        }
        command.arg("--api-socket").arg(&api).stdin(Stdio::null()).stdout(Stdio::null());
        nested_state::replace_if_lacking(&mut command)?;
        let child =
            command.stderr(fs::File::create(folder.join(format!("{name}.log")))?).spawn()?;
        let mut started = Self { child, api, serial };
        if is_hidden {
            started.api = started.seen(&started.api);
        }
        let api = started.api.clone();
        started.connect(&api)?;
        Ok(started)
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

    /// Boots the guest with memory as the API describes it, such as `{"size": 134217728}`.
    pub fn boot(&mut self, memory: &Value) -> io::Result<Serial> {
        self.boot_with(memory, &json!({}))
    }

    /// Does the same as [`boot`](Self::boot), with lists of devices, such as `{"disks": [{"path": "/a"}]}`.
    pub fn boot_with(&mut self, memory: &Value, devices: &Value) -> io::Result<Serial> {
        let image =
            guest::bzimage().ok_or_else(|| io::Error::other("the tiny guest is for x86-64"))?;
        let kernel = self.api.with_extension("bzimage");
        fs::write(&kernel, image)?;
        let mut machine = json!({
            "cpus": {"boot_vcpus": 1, "max_vcpus": 1},
            "memory": memory,
            "payload": {"kernel": kernel},
            "serial": {"mode": "Socket", "socket": self.serial},
            "console": {"mode": "Off"},
        });
        for (name, list) in devices.as_object().into_iter().flatten() {
            machine[name] = list.clone();
        }
        self.put("vm.create", &machine)?;
        self.put("vm.boot", &Value::Null)?;
        self.serial()
    }

    /// The serial port of its guest.
    pub fn serial(&mut self) -> io::Result<Serial> {
        let path = self.serial.clone();
        Serial::of_socket(self.connect(&path)?)
    }

    pub fn pause(&self) -> io::Result<()> {
        self.put("vm.pause", &Value::Null)
    }

    pub fn resume(&self) -> io::Result<()> {
        self.put("vm.resume", &Value::Null)
    }

    /// Pauses the guest and saves all of it in a folder, which is made.
    pub fn save(&self, to: &Path) -> io::Result<()> {
        fs::create_dir_all(to)?;
        first_cpu::await_end_of_output(self.pid())?;
        self.pause()?;
        self.put("vm.snapshot", &json!({"destination_url": url(to)}))
    }

    /// Restores a snapshot by one of the VMM's own modes, `Copy` or `OnDemand`, and resumes it.
    pub fn restore(&self, from: &Path, mode: &str) -> io::Result<()> {
        let how = json!({
            "source_url": url(from), "prefault": false, "memory_restore_mode": mode, "resume": true,
        });
        self.put("vm.restore", &how)
    }

    pub fn put(&self, path: &str, body: &Value) -> io::Result<()> {
        api::request(
            &self.api,
            "PUT",
            &format!("/api/v1/{path}"),
            Some(body).filter(|body| !body.is_null()),
        )
        .map(drop)
    }

    fn connect(&mut self, path: &Path) -> io::Result<UnixStream> {
        let until = Instant::now() + START;
        while Instant::now() < until {
            if let Ok(stream) = UnixStream::connect(path) {
                return Ok(stream);
            }
            if let Some(status) = self.child.try_wait()? {
                return Err(io::Error::other(format!("Cloud Hypervisor ended: {status}")));
            }
            sleep(Duration::from_millis(2));
        }
        Err(io::ErrorKind::TimedOut.into())
    }
}

/// The snapshot in a folder, for a VM of that name: its serial port listens at another socket, and
/// it has the same memory file. Returns the folder of it.
pub fn snapshot_for(folder: &Path, name: &str, snapshot: &Path) -> io::Result<PathBuf> {
    let own = folder.join(format!("{name}.snapshot"));
    fs::create_dir_all(&own)?;
    let mut config: Value = serde_json::from_slice(&fs::read(snapshot.join("config.json"))?)?;
    config["serial"]["socket"] = json!(serial_of(folder, name));
    fs::write(own.join("config.json"), config.to_string())?;
    for file in ["state.json", "memory-ranges"] {
        std::os::unix::fs::symlink(snapshot.join(file), own.join(file))?;
    }
    Ok(own)
}

fn api_of(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{name}.api"))
}

fn serial_of(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{name}.serial"))
}

fn url(folder: &Path) -> String {
    format!("file://{}", folder.display())
}

impl Drop for CloudHypervisor {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        for path in [&self.api, &self.serial] {
            let _ = fs::remove_file(path);
        }
    }
}
