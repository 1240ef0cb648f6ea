//! Devices of Cloud Hypervisor: lists in the configuration of a VM.

use serde_json::{Map, Value};

use crate::devices::{Device, OwnDevices};

/// Returns the devices of a configuration that use a part of the host. A network device without a
/// tap gets a new tap.
pub(crate) fn all(config: &Map<String, Value>) -> Vec<Device> {
    let net = |net: &Value| Some(Device::Net { id: text(net, "id")?, tap: text(net, "tap")? });
    let disk = |disk: &Value| {
        let (id, file) = (text(disk, "id")?, text(disk, "path")?.into());
        Some(Device::Disk { id, file, is_written: !is_set(disk, "readonly") })
    };
    let pmem = |pmem: &Value| {
        let (id, file) = (text(pmem, "id")?, text(pmem, "file")?.into());
        Some(Device::Pmem { id, file, is_written: !is_set(pmem, "discard_writes") })
    };
    let socket = config.get("vsock").and_then(|vsock| text(vsock, "socket"));
    let vsock = socket.map(|socket| Device::Vsock { socket: socket.into() });
    let nets = list(config, "net").filter_map(net);
    let disks = list(config, "disks").filter_map(disk).chain(list(config, "pmem").filter_map(pmem));
    nets.chain(vsock).chain(disks).collect()
}

/// Replaces parts of the host in a configuration, which must have these devices.
pub(crate) fn replace(config: &mut Map<String, Value>, own: &OwnDevices) {
    let disk = |id: &str| own.disks.get(id).map(|file| file.display().to_string());
    replace_all(config, "disks", "path", disk);
    replace_all(config, "net", "tap", |id| own.net.get(id).cloned());
    let vsock = config.get_mut("vsock").and_then(Value::as_object_mut);
    if let (Some(vsock), Some(socket)) = (vsock, &own.vsock) {
        vsock.insert("socket".to_owned(), socket.display().to_string().into());
    }
}

/// Sets a field of the devices in a list for which there is a value.
fn replace_all(
    config: &mut Map<String, Value>,
    list: &str,
    field: &str,
    value: impl Fn(&str) -> Option<String>,
) {
    let devices = config.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten();
    for device in devices.filter_map(Value::as_object_mut) {
        if let Some(value) = device.get("id").and_then(Value::as_str).and_then(&value) {
            device.insert(field.to_owned(), value.into());
        }
    }
}

fn list<'a>(config: &'a Map<String, Value>, name: &str) -> impl Iterator<Item = &'a Value> {
    config.get(name).and_then(Value::as_array).into_iter().flatten()
}

fn text(device: &Value, field: &str) -> Option<String> {
    device.get(field)?.as_str().map(str::to_owned)
}

fn is_set(device: &Value, field: &str) -> bool {
    device.get(field).and_then(Value::as_bool) == Some(true)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn config() -> Map<String, Value> {
        let config = json!({
            "disks": [
                {"id": "_disk0", "path": "/r", "readonly": true},
                {"id": "_disk1", "path": "/d", "readonly": false, "new": 7},
                {"id": "_disk2", "path": null, "vhost_user": true},
            ],
            "net": [{"id": "_net3", "tap": "tap0"}, {"id": "_net4", "tap": null}],
            "vsock": {"cid": 3, "socket": "/v"},
            "pmem": [{"id": "_pmem5", "file": "/p", "discard_writes": true}],
            "fs": null,
        });
        config.as_object().unwrap().clone()
    }

    #[test]
    fn devices_are_found_and_replaced() {
        let disk = |id: &str, file: &str, is_written| Device::Disk {
            id: id.into(),
            file: file.into(),
            is_written,
        };
        let net = |tap: &str| Device::Net { id: "_net3".into(), tap: tap.into() };
        let vsock = |socket: &str| Device::Vsock { socket: socket.into() };
        let pmem = Device::Pmem { id: "_pmem5".into(), file: "/p".into(), is_written: false };
        let root = disk("_disk0", "/r", false);
        let expected =
            [net("tap0"), vsock("/v"), root.clone(), disk("_disk1", "/d", true), pmem.clone()];
        assert_eq!(all(&config()), expected);
        let own = OwnDevices {
            net: [("_net3".to_owned(), "tap1".to_owned())].into(),
            vsock: Some("/w".into()),
            disks: [("_disk1".to_owned(), "/e".into())].into(),
        };
        let mut changed = config();
        replace(&mut changed, &own);
        let expected = [net("tap1"), vsock("/w"), root, disk("_disk1", "/e", true), pmem];
        assert_eq!(all(&changed), expected);
        assert_eq!(changed["disks"][1]["new"], 7);
        let mut same = config();
        replace(&mut same, &OwnDevices::default());
        assert_eq!(same, config());
        for odd in [json!({"disks": 5, "net": {}, "vsock": []}), json!({"disks": [5], "net": [[]]})]
        {
            let mut odd = odd.as_object().unwrap().clone();
            assert_eq!(all(&odd), []);
            replace(&mut odd, &own);
        }
    }
}
