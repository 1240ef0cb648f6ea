//! Virtual machines: guest memory is one of hugekit's uses.

use hugekit::error_chain;
use hugekit_machine::Error;

use crate::facts::Facts;
use crate::line::{Line, Topic};

const TOPIC: Topic = Topic("kvm");

/// The only version there has been since Linux 2.6.22.
const VERSION: i32 = 12;

pub(crate) fn lines(facts: &Facts) -> Vec<Line> {
    vec![line(&facts.kvm, facts.user(), facts.container())]
}

fn line(version: &Result<i32, Error>, user: u32, container: Option<&str>) -> Line {
    match version {
        Ok(VERSION) => TOPIC.ok("device", "/dev/kvm opens, interface version 12"),
        Ok(other) => TOPIC.limited("device", format!("interface version {other}, not {VERSION}")),
        Err(error) if error.is_not_found() => {
            let remedy = match container {
                Some(_) => "start the container with --device /dev/kvm",
                None => "modprobe -a kvm_intel kvm_amd  # in a VM: needs nested virtualisation",
            };
            TOPIC.missing("device", error_chain(error).to_string()).remedy(remedy)
        }
        Err(error) if error.is_permission_denied() => TOPIC
            .missing("device", error_chain(error).to_string())
            .remedy(format!("setfacl -m u:{user}:rw /dev/kvm")),
        Err(error) => TOPIC.unknown("device", error_chain(error)),
    }
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;

    use super::*;
    use crate::line::Verdict;

    fn failed(kind: ErrorKind, container: Option<&str>) -> Line {
        line(
            &Err(Error::Unreadable { path: "/dev/kvm".into(), source: kind.into() }),
            1000,
            container,
        )
    }

    #[test]
    fn absence_and_denial_have_different_remedies() {
        assert_eq!(line(&Ok(12), 0, None).verdict, Verdict::Ok);
        assert!(failed(ErrorKind::NotFound, None).remedy.unwrap().starts_with("modprobe"));
        assert!(failed(ErrorKind::NotFound, Some("podman")).remedy.unwrap().contains("--device"));
        let denied = failed(ErrorKind::PermissionDenied, None);
        assert_eq!(denied.remedy.unwrap(), "setfacl -m u:1000:rw /dev/kvm");
        assert_eq!(failed(ErrorKind::Interrupted, None).verdict, Verdict::Unknown);
    }
}
