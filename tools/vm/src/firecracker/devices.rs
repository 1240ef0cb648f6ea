//! Devices in Firecracker's configuration.

use std::path::PathBuf;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::devices::{Device, OwnDevices};

/// The answer to `GET /vm/config`. A release lists only the kinds of devices that it supports.
#[derive(Deserialize)]
struct Config {
    #[serde(default)]
    drives: Option<Vec<Drive>>,
    #[serde(default, rename = "network-interfaces")]
    nets: Option<Vec<Net>>,
    #[serde(default)]
    vsock: Option<Vsock>,
    #[serde(default)]
    pmem: Option<Vec<Pmem>>,
}

#[derive(Deserialize)]
struct Drive {
    drive_id: String,
    /// `None` for a drive of another process, which cannot be saved.
    path_on_host: Option<PathBuf>,
    is_read_only: Option<bool>,
}

#[derive(Deserialize)]
struct Net {
    iface_id: String,
    host_dev_name: String,
}

#[derive(Deserialize)]
struct Vsock {
    uds_path: PathBuf,
}

#[derive(Deserialize)]
struct Pmem {
    id: String,
    path_on_host: PathBuf,
    read_only: Option<bool>,
}

impl Drive {
    fn device(self) -> Option<Device> {
        let (id, file) = (self.drive_id, self.path_on_host?);
        Some(Device::Disk { id, file, is_written: self.is_read_only != Some(true) })
    }
}

impl Pmem {
    fn device(self) -> Device {
        let Self { id, path_on_host: file, read_only } = self;
        Device::Pmem { id, file, is_written: read_only != Some(true) }
    }
}

/// Returns all devices that use a part of the host.
pub(crate) fn all(config: &str) -> serde_json::Result<Vec<Device>> {
    let Config { drives, nets, vsock, pmem } = serde_json::from_str(config)?;
    let net = |net: Net| Device::Net { id: net.iface_id, tap: net.host_dev_name };
    let nets = nets.into_iter().flatten().map(net);
    let vsock = vsock.map(|vsock| Device::Vsock { socket: vsock.uds_path });
    let drives = drives.into_iter().flatten().filter_map(Drive::device);
    let pmem = pmem.into_iter().flatten().map(Pmem::device);
    Ok(nets.chain(vsock).chain(drives).chain(pmem).collect())
}

/// Returns the fields of the request that restores a VM. A release refuses fields that it does not
/// know, so only needed fields are sent.
pub(crate) fn overrides(own: &OwnDevices) -> Map<String, Value> {
    let mut fields = Map::new();
    if !own.net.is_empty() {
        let of = |(id, tap)| json!({"iface_id": id, "host_dev_name": tap});
        fields.insert("network_overrides".to_owned(), own.net.iter().map(of).collect());
    }
    if let Some(socket) = &own.vsock {
        fields.insert("vsock_override".to_owned(), json!({"uds_path": socket}));
    }
    fields
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_those_of_the_configuration() {
        let config = json!({
            "drives": [
                {"drive_id": "root", "path_on_host": "/r", "is_read_only": true, "socket": null},
                {"drive_id": "other", "path_on_host": null, "is_read_only": null, "socket": "/s"},
                {"drive_id": "data", "path_on_host": "d", "is_read_only": false},
            ],
            "network-interfaces": [{"iface_id": "eth0", "host_dev_name": "tap0", "mtu": null}],
            "vsock": {"guest_cid": 3, "uds_path": "/v"},
            "pmem": [{"id": "pm", "path_on_host": "/p", "read_only": false}],
            "balloon": null,
        });
        let disk = |id: &str, file: &str, is_written| Device::Disk {
            id: id.into(),
            file: file.into(),
            is_written,
        };
        let expected = [
            Device::Net { id: "eth0".into(), tap: "tap0".into() },
            Device::Vsock { socket: "/v".into() },
            disk("root", "/r", false),
            disk("data", "d", true),
            Device::Pmem { id: "pm".into(), file: "/p".into(), is_written: true },
        ];
        assert_eq!(all(&config.to_string()).unwrap(), expected);
        let none = json!({"drives": [], "vsock": null, "network-interfaces": null});
        for config in [none.to_string(), "{}".to_owned()] {
            assert_eq!(all(&config).unwrap(), []);
        }
        // A disk that is not understood is not left out.
        let odd = json!({"drives": [{"drive_id": "data", "file": "/d"}, {"path_on_host": "/d"}]});
        assert!(all(&odd.to_string()).is_err());
    }

    #[test]
    fn fields_are_sent_only_if_they_are_needed() {
        assert!(overrides(&OwnDevices::default()).is_empty());
        let own = OwnDevices {
            net: [("eth0".to_owned(), "tap1".to_owned())].into(),
            vsock: Some("/v".into()),
            ..OwnDevices::default()
        };
        let expected = json!({
            "network_overrides": [{"iface_id": "eth0", "host_dev_name": "tap1"}],
            "vsock_override": {"uds_path": "/v"},
        });
        assert_eq!(Value::from(overrides(&own)), expected);
    }
}
