//! Which hypervisor runs this machine, from the most to the least direct witness.

use hugekit_machine::Root;

/// Vendors in the firmware tables of virtual machines. Bare machines of the same vendors have other names.
const FIRMWARE: &[(&str, &str)] = &[
    ("QEMU", "QEMU"),
    ("KVM", "KVM"),
    ("VMware", "VMware"),
    ("innotek", "VirtualBox"),
    ("VirtualBox", "VirtualBox"),
    ("Xen", "Xen"),
    ("Bochs", "Bochs"),
    ("Parallels", "Parallels"),
    ("BHYVE", "bhyve"),
    ("Apple Virtualization", "Apple Virtualization"),
    ("Virtual Machine", "Hyper-V"),
    ("Google Compute Engine", "Google Compute Engine"),
    ("OpenStack", "OpenStack"),
];

pub(crate) fn read(root: &Root) -> Option<String> {
    let processor = root.is_this_machine().then(from_processor).flatten();
    processor.map(str::to_owned).or_else(|| from_firmware(root)).or_else(|| from_kernel(root))
}

#[cfg(target_arch = "x86_64")]
fn from_processor() -> Option<&'static str> {
    use raw_cpuid::{CpuId, Hypervisor};

    Some(match CpuId::new().get_hypervisor_info()?.identify() {
        Hypervisor::Xen => "Xen",
        Hypervisor::VMware => "VMware",
        Hypervisor::HyperV => "Hyper-V",
        Hypervisor::KVM => "KVM",
        Hypervisor::QEMU => "QEMU",
        Hypervisor::Bhyve => "bhyve",
        Hypervisor::QNX => "QNX",
        Hypervisor::ACRN => "ACRN",
        Hypervisor::Unknown(..) => "an unknown one",
    })
}

#[cfg(not(target_arch = "x86_64"))]
fn from_processor() -> Option<&'static str> {
    None
}

fn from_firmware(root: &Root) -> Option<String> {
    let texts = ["sys_vendor", "product_name", "bios_vendor"]
        .map(|name| root.read(format!("/sys/class/dmi/id/{name}")).unwrap_or_default());
    let says = |mark: &str| texts.iter().any(|text| text.contains(mark));
    FIRMWARE.iter().find(|(mark, _)| says(mark)).map(|(_, name)| (*name).to_owned())
}

fn from_kernel(root: &Root) -> Option<String> {
    if let Ok(kind) = root.read("/sys/hypervisor/type") {
        return Some(kind.trim().to_owned());
    }
    let cpus = root.read("/proc/cpuinfo").ok()?;
    let flags = cpus.lines().find(|line| line.starts_with("flags"))?;
    flags
        .split_ascii_whitespace()
        .any(|flag| flag == "hypervisor")
        .then(|| "an unknown one".to_owned())
}

#[cfg(test)]
mod tests {
    use hugekit_invented_machines::Files;

    use super::*;

    #[test]
    fn firmware_names_it() {
        let machine = Files::new().unwrap();
        machine.file("/sys/class/dmi/id/sys_vendor", "Microsoft Corporation");
        machine.file("/sys/class/dmi/id/product_name", "Virtual Machine");
        assert_eq!(read(&Root::at(machine.path())).as_deref(), Some("Hyper-V"));
    }

    #[test]
    fn the_kernel_knows_that_there_is_one() {
        let machine = Files::new().unwrap();
        machine.file("/proc/cpuinfo", "flags\t\t: fpu hypervisor lahf_lm");
        assert_eq!(read(&Root::at(machine.path())).as_deref(), Some("an unknown one"));
        machine.file("/sys/hypervisor/type", "xen");
        assert_eq!(read(&Root::at(machine.path())).as_deref(), Some("xen"));
    }

    #[test]
    fn a_bare_machine_has_none() {
        let machine = Files::new().unwrap();
        machine.file("/sys/class/dmi/id/sys_vendor", "Amazon EC2");
        machine.file("/proc/cpuinfo", "flags\t\t: fpu lahf_lm");
        assert_eq!(read(&Root::at(machine.path())), None);
    }
}
