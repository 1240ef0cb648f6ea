//! A restore by migration: a VM is sent to a VMM that has no VM. For the VMM, this is a migration
//! from another VMM of the same host.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use hugekit_sys::seqpacket::peer;
use libc::ucred;
use serde_json::json;

use crate::api::Answer;
use crate::cloud_hypervisor::error::{RestoreError, UnfitMemory};
use crate::cloud_hypervisor::memory::ReadyMemory;
use crate::cloud_hypervisor::place::{Link, Place, connectable, has_empty_memory, own_path};
use crate::cloud_hypervisor::protocol::{Failure, MigrationCommand, Receiver};
use crate::cloud_hypervisor::snapshot::Snapshot;
use crate::cloud_hypervisor::start::await_listener;
use crate::devices::{self, DeviceError, Host, NewDisks, OwnDevices};
use crate::vmm::hidden::unguessable;

const RECEIVE: &str = "vm.receive-migration";

/// Options of a restore of a VM of Cloud Hypervisor.
#[derive(Clone, Debug)]
#[must_use = "nothing is restored until `send`"]
pub struct Restore<'a> {
    snapshot: &'a Snapshot,
    own: OwnDevices,
    is_resumed: bool,
}

/// The result of a restore.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Restored {
    /// The time from the request to the VMM until the VM was complete.
    pub took: Duration,
    /// The link of a clone of an image, by its path for the VMM. The VMM needs the link when the VM
    /// reboots. The link may be removed when the VMM has ended. `None` if the VM maps no image.
    pub link: Option<PathBuf>,
    /// True if the VM can reboot. False if the VM maps an image and the root of its VMM has no
    /// `/dev/zero`.
    pub can_reboot: bool,
}

/// The step that failed.
#[derive(Debug)]
enum MigrationEnd {
    Step(MigrationCommand, Failure),
    Link(io::Error),
    Memory(UnfitMemory),
}

impl<'a> Restore<'a> {
    /// Makes options for a restore of a snapshot. By default the VM stays paused.
    pub fn new(snapshot: &'a Snapshot) -> Self {
        Self { snapshot, own: OwnDevices::default(), is_resumed: false }
    }

    /// Sets if the VM runs as soon as it is complete. By default false.
    pub fn resume(self, is_resumed: bool) -> Self {
        Self { is_resumed, ..self }
    }

    /// Sets devices that replace those of the snapshot. By default none.
    pub fn own(self, own: OwnDevices) -> Self {
        Self { own, ..self }
    }

    /// Sends the VM to the Cloud Hypervisor whose API listens at this socket, or begins to listen
    /// within ten seconds. The VMM must have no VM. During the restore, the VMM listens at a socket
    /// beside its API. If the VMM does not reach the folder of its API, may not write to it, or if
    /// the path is too long, the VMM listens in a new folder in `/tmp`.
    ///
    /// The memory of a VM that maps an image is the file `API.memory` of the same folder. This file
    /// is a symbolic link, which stays: see [`Restored::link`].
    ///
    /// # Errors
    /// [`RestoreError`] if the VM cannot be restored. The VMM has no VM then.
    pub fn send(&self, socket: &Path, memory: &ReadyMemory) -> Result<Restored, RestoreError> {
        let of_api = |source| RestoreError::Api { socket: socket.to_owned(), source };
        let (api, _folder) = connectable(socket).map_err(of_api)?;
        let since = Instant::now();
        let connected = await_listener(|| crate::api::connect(&api), || false).map_err(of_api)?;
        // The process that listens: usually the VMM, or the one that has passed the socket to it.
        let vmm = peer(&connected).ok();
        drop(connected);
        if memory.image().is_some() && vmm.is_some_and(|vmm| vmm.pid == 0) {
            return Err(RestoreError::Unseen);
        }
        let disks = NewDisks::make([&self.own].into_iter())?;
        let own = self.prepare_devices(vmm, &disks)?;
        let this = Self { own, ..self.clone() };
        let to = Vmm { socket, api: &api };
        let first = match Place::of_api(socket, vmm).map_err(of_api)? {
            Some(place) => this.send_at(&to, &place, memory),
            None => Err(RestoreError::Place {
                folder: socket.parent().unwrap_or(Path::new("")).to_owned(),
                source: io::Error::other("the VMM sees another folder there"),
            }),
        };
        let (link, can_reboot) = match first {
            Err(RestoreError::Place { .. }) => {
                let place = Place::new(vmm);
                let folder = "/tmp".into();
                let place = place.map_err(|source| RestoreError::Place { folder, source })?;
                this.send_at(&to, &place, memory)?
            }
            other => other?,
        };
        disks.keep();
        Ok(Restored { took: since.elapsed(), link, can_reboot })
    }

    /// Checks that the VM can get its devices, and fills its new disks. Returns the devices by
    /// their names for the VMM.
    fn prepare_devices(
        &self,
        vmm: Option<ucred>,
        disks: &NewDisks,
    ) -> Result<OwnDevices, RestoreError> {
        let devices = self.snapshot.config.devices();
        let Some(vmm) = vmm.filter(|vmm| vmm.pid != 0 && !devices.is_empty()) else {
            self.own.check_names(&devices)?;
            return Ok(self.own.clone());
        };
        let host = Host::of("the VM".to_owned(), vmm.pid).map_err(DeviceError::Vmm)?;
        devices::check(&devices, None, [(&self.own, &host)].into_iter())?;
        let mut written = devices.iter().filter(|device| device.has_written_file());
        written.try_for_each(|device| host.check_saved(device, &self.snapshot.at))?;
        disks.of_vm(&devices, |disk| host.file_named(disk))?.copy()?;
        let own = disks.of(1, &host)?.into_iter();
        let disks = own.map(|(id, path)| (id.to_owned(), path.to_owned())).collect();
        Ok(OwnDevices { disks, ..self.own.clone() })
    }

    /// Makes the VMM listen in a folder, and sends the VM. Returns the path of the link, and true
    /// if the VM can reboot.
    fn send_at(
        &self,
        to: &Vmm<'_>,
        place: &Place,
        memory: &ReadyMemory,
    ) -> Result<(Option<PathBuf>, bool), RestoreError> {
        let of_place = |source| RestoreError::Place { folder: place.path().to_owned(), source };
        let link = memory.image().map(|_| Link::new(place, to.socket)).transpose();
        let link = link.map_err(of_place)?;
        let receiver = ReceiverSocket::new(place).map_err(of_place)?;
        let call = to.ask(&receiver)?;
        let connect = || UnixStream::connect(receiver.path_here());
        let stream = match await_listener(connect, || call.is_answered()) {
            Ok(stream) => stream,
            Err(source) if call.is_answered() => {
                let answer = call.wait().map_err(|source| to.silent(source))?;
                return Err(match answer.is_success() {
                    true => RestoreError::Unreachable { path: receiver.path(), source },
                    false => refused(answer, place),
                });
            }
            Err(source) => {
                // The VMM waits there for a sender, and does not answer before one comes.
                return Err(RestoreError::Unreachable { path: receiver.path(), source });
            }
        };
        // It has bound the socket, so it is the VMM in any case.
        let vmm = peer(&stream).ok();
        let sent = self.walk(stream, memory, link.as_ref(), vmm);
        match (sent, call.wait()) {
            (Ok(()), answer) => is_success(answer.map_err(|source| to.silent(source))?, place)?,
            (Err(MigrationEnd::Step(command, failure)), answer) => {
                return Err(explained(command, failure, answer, place));
            }
            (Err(MigrationEnd::Link(source)), _) => return Err(of_place(source)),
            (Err(MigrationEnd::Memory(unfit)), _) => return Err(unfit.into()),
        }
        let Some(link) = link else { return Ok((None, true)) };
        Ok((Some(link.keep()), has_empty_memory(vmm)))
    }

    fn walk(
        &self,
        stream: UnixStream,
        memory: &ReadyMemory,
        link: Option<&Link<'_>>,
        vmm: Option<ucred>,
    ) -> Result<(), MigrationEnd> {
        let of = |command| move |failure: Failure| MigrationEnd::Step(command, failure);
        let receiver = Receiver::new(stream).map_err(Failure::from);
        let mut to = receiver.map_err(of(MigrationCommand::Start))?;
        to.send(MigrationCommand::Start, &[]).map_err(of(MigrationCommand::Start))?;
        for (slot, file) in memory.slots() {
            to.send_memory(slot, file).map_err(of(MigrationCommand::MemoryFd))?;
        }
        if let (Some(image), Some(link)) = (memory.image(), link) {
            let path =
                self.hand_over(&mut to, image, vmm).map_err(of(MigrationCommand::MemoryFd))?;
            link.lead_to(&path, vmm).map_err(MigrationEnd::Link)?;
        }
        let machine = memory.machine(self.snapshot, &self.own, link.map(Link::path).as_deref());
        let machine =
            serde_json::to_vec(&machine.map_err(MigrationEnd::Memory)?).expect("it is JSON");
        to.send(MigrationCommand::Config, &machine).map_err(of(MigrationCommand::Config))?;
        // All memory is mapped now.
        if let Some(link) = link {
            link.lead_to(Path::new(Link::EMPTY), vmm).map_err(MigrationEnd::Link)?;
        }
        to.send(MigrationCommand::State, &self.snapshot.state)
            .map_err(of(MigrationCommand::State))?;
        let end = if self.is_resumed {
            MigrationCommand::Complete
        } else {
            MigrationCommand::CompletePaused
        };
        to.send(end, &[]).map_err(of(end))
    }

    /// Gives the VMM a descriptor of the image, for a slot without memory. The VMM keeps the
    /// descriptor until its memory is made. Returns a path at which the VMM opens the image. A VMM
    /// of any user and in any PID namespace can open its own descriptor; this process's descriptor
    /// may be closed to it.
    fn hand_over(
        &self,
        to: &mut Receiver,
        image: BorrowedFd<'_>,
        vmm: Option<ucred>,
    ) -> Result<PathBuf, Failure> {
        let own =
            || PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), image.as_raw_fd()));
        let (Some(vmm), Some(slot)) = (vmm, self.snapshot.layout.spare_slot()) else {
            return Ok(own());
        };
        to.send_memory(slot, image)?;
        Ok(own_path(vmm.pid, image).unwrap_or_else(|_| own()))
    }
}

/// The VMM, by its API.
#[derive(Debug)]
struct Vmm<'a> {
    socket: &'a Path,
    /// The path of the socket, in a form that is short enough.
    api: &'a Path,
}

impl Vmm<'_> {
    /// Requests that the VMM listens for a VM.
    fn ask(&self, receiver: &ReceiverSocket<'_>) -> Result<crate::api::Pending, RestoreError> {
        let body = json!({"receiver_url": format!("unix:{}", receiver.path().display())});
        let path = format!("/api/v1/{RECEIVE}");
        let call = crate::api::send(self.api, "PUT", &path, Some(&body));
        call.map_err(|source| self.silent(source))
    }

    fn silent(&self, source: io::Error) -> RestoreError {
        RestoreError::Api { socket: self.socket.to_owned(), source }
    }
}

fn is_success(answer: Answer, place: &Place) -> Result<(), RestoreError> {
    match answer.is_success() {
        true => Ok(()),
        false => Err(refused(answer, place)),
    }
}

fn refused(answer: Answer, place: &Place) -> RestoreError {
    if answer.body.contains("binding to UNIX socket") {
        let folder = place.path().to_owned();
        return RestoreError::Place { folder, source: io::Error::other(answer.body) };
    }
    RestoreError::Refused { request: RECEIVE, status: answer.status, answer: answer.body }
}

/// Returns the error, with the message of the VMM's API if there is one.
fn explained(
    command: MigrationCommand,
    failure: Failure,
    answer: io::Result<Answer>,
    place: &Place,
) -> RestoreError {
    let what = command.subject();
    match (failure, answer) {
        (_, Ok(answer)) if command == MigrationCommand::Start => refused(answer, place),
        (_, Ok(answer)) => RestoreError::Rejected { what, answer: answer.body },
        (Failure::Broken(source), Err(_)) => RestoreError::Broken { what, source },
        (Failure::Rejected, Err(source)) => RestoreError::Broken { what, source },
    }
}

/// The socket at which the VMM listens during the restore. No other process can know its name
/// before.
#[derive(Debug)]
struct ReceiverSocket<'a> {
    place: &'a Place,
    name: String,
}

impl<'a> ReceiverSocket<'a> {
    fn new(place: &'a Place) -> io::Result<Self> {
        let name = format!(".hk-{}", unguessable()?);
        if !place.fits(OsStr::new(&name)) {
            return Err(io::Error::other("its path is too long for a socket"));
        }
        Ok(Self { place, name })
    }

    /// Returns the path of the socket for the VMM.
    fn path(&self) -> PathBuf {
        self.place.path_of(OsStr::new(&self.name))
    }

    fn path_here(&self) -> PathBuf {
        self.place.path_here(OsStr::new(&self.name))
    }
}

impl Drop for ReceiverSocket<'_> {
    fn drop(&mut self) {
        self.place.remove(OsStr::new(&self.name));
    }
}
