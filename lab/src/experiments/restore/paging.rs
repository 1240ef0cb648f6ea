//! Whether a guest's page faults may cost more than on hardware virtualization.

use std::fs;

use hugekit_machine::Root;

/// Modules of KVM that may use the CPU's second level of page tables, with the parameter that says
/// whether they do.
const SECOND_LEVEL: [&str; 2] =
    ["/sys/module/kvm_intel/parameters/ept", "/sys/module/kvm_amd/parameters/npt"];

/// The notice that belongs to ratios of touches; `None` if KVM says that the CPU translates the
/// guest's addresses.
pub(in crate::experiments) fn notice(root: &Root) -> Option<String> {
    let is_yes = |path: &&str| {
        let value = fs::read_to_string(root.path(path));
        value.is_ok_and(|value| ["Y", "1"].contains(&value.trim()))
    };
    let notice = "touch ratios are flattered: KVM does not say that it uses the CPU's second level of \
                  page tables (kvm_intel.ept, kvm_amd.npt), so it may use shadow page tables, with \
                  which a page fault of a guest takes several times as long";
    (!SECOND_LEVEL.iter().any(is_yes)).then(|| notice.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on_machine(module: Option<(&str, &str)>) -> bool {
        let folder = tempfile::tempdir().unwrap();
        if let Some((parameter, value)) = module {
            let path = folder.path().join("sys/module").join(parameter);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, value).unwrap();
        }
        notice(&Root::at(folder.path())).is_some()
    }

    #[test]
    fn notice_is_left_out_only_if_kvm_excludes_shadow_page_tables() {
        assert!(!on_machine(Some(("kvm_intel/parameters/ept", "Y\n"))));
        assert!(!on_machine(Some(("kvm_amd/parameters/npt", "1\n"))));
        assert!(on_machine(Some(("kvm_amd/parameters/npt", "0\n"))));
        assert!(on_machine(Some(("kvm_intel/parameters/ept", "N\n"))));
        assert!(on_machine(None));
    }
}
