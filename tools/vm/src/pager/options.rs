//! The options of a pager. With the feature `clap`, they are the arguments of the command.

use std::path::{Path, PathBuf};
use std::time::Duration;

#[cfg(feature = "clap")]
use hugekit_machine::size::{Size, parse_bytes};
use serde::{Deserialize, Serialize};

#[cfg(feature = "clap")]
use crate::arguments::seconds;

/// A pager's way of serving VMs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::Args))]
#[serde(default, deny_unknown_fields)]
pub struct PagerOptions {
    /// Bytes to supply for each page fault, from 4KiB to 2MiB.
    ///
    /// A power of two, at least a base page.
    #[cfg_attr(feature = "clap", arg(
        long,
        value_name = "SIZE",
        value_parser = parse_bytes,
        default_value = Size::from(PagerOptions::default().around).to_string()
    ))]
    pub around: u64,
    /// True, the default, if memory is read before it is touched. If not, the pager serves until the
    /// VM ends.
    #[cfg_attr(feature = "clap", arg(
        long = "no-prefetch",
        action = clap::ArgAction::SetFalse,
        help = "Supply memory only when it is touched; such VMs need the pager until they end"
    ))]
    pub prefetch: bool,
    /// The file with the memory that VMs touch first [default: FILE.working-set; of an
    /// image, in the folder for the state of VMs; of a layout, its layer or LAYOUT.working-set]
    #[cfg_attr(feature = "clap", arg(long, value_name = "PATH"))]
    pub working_set: Option<PathBuf>,
    /// Seconds to record the touches of a VM, if there is no such file.
    ///
    /// Everything else is read afterwards.
    #[cfg_attr(feature = "clap", arg(
        long,
        value_name = "SECONDS",
        value_parser = seconds(0),
        default_value = PagerOptions::default().record.as_secs().to_string()
    ))]
    pub record: Duration,
    /// The time after its connection in which a VM gets only memory that it waits for. The time
    /// ends earlier if the VM has had 16 faults. Default: 0.1 s.
    #[cfg_attr(feature = "clap", arg(skip = PagerOptions::default().startup))]
    pub startup: Duration,
    /// Continue to serve VMs whose memory is complete.
    #[cfg_attr(feature = "clap", arg(long))]
    pub stay: bool,
    /// The time for which a VM waits if its message was lost with an earlier pager and its regions
    /// cannot be determined. Another VM of the same memory file that connects meanwhile shows the
    /// regions. Default: a minute.
    #[cfg_attr(feature = "clap", arg(skip = PagerOptions::default().patience))]
    pub patience: Duration,
    /// Also serve VMs of this user.
    #[cfg_attr(feature = "clap", arg(long = "user", value_name = "UID"))]
    pub users: Vec<u32>,
    /// The folder for the state of VMs, by which the next pager serves them [default: SOCKET.state]
    #[cfg_attr(feature = "clap", arg(long, value_name = "DIR"))]
    pub state_dir: Option<PathBuf>,
}

/// 2 MiB.
pub(crate) const LONGEST_AROUND: u64 = 2 << 20;

impl Default for PagerOptions {
    fn default() -> Self {
        Self {
            around: LONGEST_AROUND,
            prefetch: true,
            working_set: None,
            record: Duration::from_secs(10),
            startup: Duration::from_millis(100),
            stay: false,
            patience: Duration::from_secs(60),
            users: Vec::new(),
            state_dir: None,
        }
    }
}

impl PagerOptions {
    pub(crate) fn state_folder(&self, socket: &Path) -> PathBuf {
        let beside = || {
            let mut path = socket.to_owned().into_os_string();
            path.push(".state");
            path.into()
        };
        self.state_dir.clone().unwrap_or_else(beside)
    }
}
