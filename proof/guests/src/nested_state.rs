//! Cloud Hypervisor saves each vCPU's state of nested virtualization, and fails if KVM has none:
//! KVM without hardware virtualization beneath it answers `EINVAL`.
//!
//! There, a filter of system calls answers in the place of KVM that all is done. The buffer stays
//! as Cloud Hypervisor has made it, which is that of a vCPU without such a state.
#![allow(unsafe_code)]

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};

/// Numbers of `linux/kvm.h`.
const CHECK_EXTENSION: libc::c_ulong = 0xae03;
const CAP_NESTED_STATE: libc::c_int = 157;
const GET_NESTED_STATE: u64 = 0xc080_aebe;
const SET_NESTED_STATE: u64 = 0x4080_aebf;

/// Has the command start a VMM that can save vCPUs, whether or not KVM has that state.
pub(crate) fn replace_if_lacking(command: &mut Command) -> io::Result<()> {
    let kvm = fs::OpenOptions::new().read(true).write(true).open("/dev/kvm")?;
    if is_there(kvm.as_raw_fd()) {
        return Ok(());
    }
    let filter = filter().map_err(io::Error::other)?;
    // SAFETY: between fork and exec, the function makes two system calls and allocates nothing: an
    // error of `apply_filter` is replaced by the system's.
    unsafe {
        command.pre_exec(move || {
            seccompiler::apply_filter(&filter).map_err(|_| io::Error::last_os_error())
        });
    }
    Ok(())
}

fn is_there(kvm: RawFd) -> bool {
    // SAFETY: this request reads no memory: its argument is a number.
    unsafe { libc::ioctl(kvm, CHECK_EXTENSION as _, CAP_NESTED_STATE) > 0 }
}

/// Both requests do nothing and succeed.
fn filter() -> Result<BpfProgram, seccompiler::BackendError> {
    let request = |number| {
        let is_it = SeccompCondition::new(1, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, number)?;
        SeccompRule::new(vec![is_it])
    };
    let rules = vec![request(GET_NESTED_STATE)?, request(SET_NESTED_STATE)?];
    let rules = [(libc::SYS_ioctl, rules)].into();
    let done = SeccompAction::Errno(0);
    let arch = std::env::consts::ARCH.try_into()?;
    SeccompFilter::new(rules, SeccompAction::Allow, done, arch)?.try_into()
}
