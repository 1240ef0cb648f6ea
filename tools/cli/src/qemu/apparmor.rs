//! What AppArmor has to permit to guests of libvirt.

use std::path::Path;

/// With the paths of Debian's package.
const RULES: &str = include_str!("../../installed/apparmor");

/// Returns the rules for a script and a command in this folder.
pub(super) fn rules(folder: &Path) -> String {
    RULES.replace("/usr/bin/", &format!("{}/", folder.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_name_the_script_and_the_command_where_they_are() {
        let rules = rules(Path::new("/opt/hugekit"));
        assert!(rules.contains("\n/opt/hugekit/hugekit-qemu rix,\n"), "{rules}");
        assert!(rules.contains("\n/opt/hugekit/hugekit ix,\n"), "{rules}");
        assert!(!rules.contains("/usr/bin"), "{rules}");
    }
}
