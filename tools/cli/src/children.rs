//! Commands, sockets and requests of children, with patterns for their numbers.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use clap::Args;
use hugekit_terminal::outcome::UsageError;
use hugekit_vm::checkpoint::{ChildOptions, OwnDevices};
use serde_json::{Map, Value};

/// Stands for the number of a child, and for the socket of its API.
const NUMBER: &str = "{}";
const API: &str = "{api}";

/// Devices in the place of those of a VM. Names of children have patterns for the number.
#[derive(Debug, Args)]
pub(crate) struct DeviceOptions {
    /// An existing tap for a network device of the VM, such as `eth0=tap{}`
    #[arg(long, value_name = "DEVICE=TAP", value_parser = named)]
    net: Vec<(String, String)>,
    /// The socket of the vsock, such as `vsock-{}.sock`
    #[arg(long, value_name = "SOCKET")]
    vsock: Option<OsString>,
    /// A file to make for a disk that the VM writes, such as `data=disk-{}.img`: a copy of the VM's
    /// disk, which shares blocks with it if the file system can
    #[arg(long, value_name = "DISK=FILE", value_parser = named)]
    disk: Vec<(String, String)>,
}

/// Devices of children, and the rest of the request that restores them.
#[derive(Debug, Args)]
pub(crate) struct ChildDevices {
    #[command(flatten)]
    devices: DeviceOptions,
    /// Other fields to add to the request that restores a VM, with `{}` for the number, such as
    /// `{"huge_pages": "Transparent"}`
    #[arg(long, value_name = "JSON")]
    load: Option<String>,
}

/// `NAME=PATTERN`
fn named(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, pattern)) if !name.is_empty() && !pattern.is_empty() => {
            Ok((name.to_owned(), pattern.to_owned()))
        }
        _ => Err("there must be a name before = and another one after it".to_owned()),
    }
}

impl DeviceOptions {
    /// Checks that files and sockets have a number. Taps of one name may be in several network namespaces.
    fn check(&self, count: u16) -> Result<(), UsageError> {
        let files = self.disk.iter().map(|(_, file)| ("--disk", OsStr::new(file)));
        let all = files.chain(self.vsock.iter().map(|socket| ("--vsock", socket.as_os_str())));
        all.into_iter().try_for_each(|(option, pattern)| check_number(option, pattern, count))
    }

    /// Returns the devices of a child, or of the one VM.
    pub(crate) fn own(&self, number: &str) -> OwnDevices {
        let numbered = |text: &OsStr| PathBuf::from(replaced(text, NUMBER, OsStr::new(number)));
        let tap = |(device, tap): &(String, String)| (device.clone(), tap.replace(NUMBER, number));
        let disk = |(disk, file): &(String, String)| (disk.clone(), numbered(file.as_ref()));
        OwnDevices {
            net: self.net.iter().map(tap).collect(),
            vsock: self.vsock.as_deref().map(numbered),
            disks: self.disk.iter().map(disk).collect(),
        }
    }
}

impl ChildDevices {
    fn load(&self, number: &str) -> Result<Map<String, Value>, UsageError> {
        let Some(load) = &self.load else { return Ok(Map::new()) };
        serde_json::from_str(&load.replace(NUMBER, number))
            .map_err(|error| UsageError(format!("--load is not a JSON object: {error}")))
    }
}

/// The options of all children, from 1 on.
pub(crate) struct ChildPattern<'a> {
    pub(crate) api: ChildApis<'a>,
    pub(crate) devices: &'a ChildDevices,
    pub(crate) command: &'a [OsString],
}

/// The sockets of the children's APIs.
pub(crate) enum ChildApis<'a> {
    /// `SOCKET.N`
    Beside(&'a Path),
    /// With a pattern for the number.
    Named(&'a OsStr),
}

impl<'a> ChildApis<'a> {
    /// # Errors
    /// Several children would have one socket. `option` names the pattern.
    pub(crate) fn named(option: &str, pattern: &'a OsStr, count: u16) -> Result<Self, UsageError> {
        check_number(option, pattern, count).map(|()| Self::Named(pattern))
    }

    fn of(&self, number: &str) -> PathBuf {
        match self {
            Self::Beside(socket) => {
                let mut path = socket.as_os_str().to_owned();
                path.push(format!(".{number}"));
                path.into()
            }
            Self::Named(pattern) => replaced(pattern, NUMBER, OsStr::new(number)).into(),
        }
    }
}

impl ChildPattern<'_> {
    /// # Errors
    /// A pattern is wrong.
    pub(crate) fn children(&self, count: u16) -> Result<Vec<ChildOptions>, UsageError> {
        self.devices.devices.check(count)?;
        (1..=count).map(|number| self.child(&number.to_string())).collect()
    }

    fn child(&self, number: &str) -> Result<ChildOptions, UsageError> {
        let api = self.api.of(number);
        let in_command = |argument: &OsString| {
            let numbered = replaced(argument, NUMBER, OsStr::new(number));
            replaced(&numbered, API, api.as_os_str())
        };
        let command: Vec<OsString> = self.command.iter().map(in_command).collect();
        if !self.command.iter().any(|argument| has(argument, API)) {
            return Err(UsageError(format!("the command must have {API} in its arguments")));
        }
        let mut options = ChildOptions::new(command, api);
        options.own = self.devices.devices.own(number);
        options.load = self.devices.load(number)?;
        Ok(options)
    }
}

fn check_number(option: &str, pattern: &OsStr, count: u16) -> Result<(), UsageError> {
    if count > 1 && !has(pattern, NUMBER) {
        return Err(UsageError(format!("{option} must have {NUMBER} for the number")));
    }
    Ok(())
}

fn has(text: &OsStr, pattern: &str) -> bool {
    find(text.as_bytes(), pattern).is_some()
}

fn find(text: &[u8], pattern: &str) -> Option<usize> {
    text.windows(pattern.len()).position(|part| part == pattern.as_bytes())
}

/// Returns the text with another one in each place of a pattern.
fn replaced(text: &OsStr, pattern: &str, by: &OsStr) -> OsString {
    let (mut rest, mut all) = (text.as_bytes(), Vec::new());
    while let Some(at) = find(rest, pattern) {
        all.extend_from_slice(&rest[..at]);
        all.extend_from_slice(by.as_bytes());
        rest = &rest[at + pattern.len()..];
    }
    all.extend_from_slice(rest);
    OsString::from_vec(all)
}
