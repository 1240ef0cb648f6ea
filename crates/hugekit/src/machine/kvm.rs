//! Whether this process can run virtual machines.

use super::{Error, Root};
use crate::sys;

/// Opens `/dev/kvm` and returns the version of its interface; 12 is the only one in use.
///
/// # Errors
/// The device does not exist, may not be opened, or is no KVM.
pub fn api_version(root: &Root) -> Result<i32, Error> {
    let path = root.path("/dev/kvm");
    sys::kvm::api_version(&path).map_err(|errno| Error::Unreadable { path, source: errno.into() })
}

#[cfg(test)]
mod tests {
    use super::super::synthetic::Synthetic;
    use super::*;

    #[test]
    fn absent_and_impostor_are_told_apart() {
        let machine = Synthetic::new();
        assert!(api_version(&machine.root()).unwrap_err().is_not_found());
        machine.file("/dev/kvm", "");
        let error = api_version(&machine.root()).unwrap_err();
        assert!(!error.is_not_found() && error.to_string().contains("dev/kvm"), "{error}");
    }
}
