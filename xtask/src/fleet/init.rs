//! The first process of a guest: a script for busybox, which sets the kernel as the table says, runs one
//! command after the other, says on the second serial port how each went, and switches the guest off.

use super::kernels::Architecture;
use super::machine::{Beside, Machine, Rights, Run};
use super::programs::Program;

const BEGIN: &str = r#"#!/bin/busybox sh
/bin/busybox mkdir -p /proc /sys /dev /tmp /root /run
/bin/busybox mount -t proc proc /proc
/bin/busybox --install -s /bin
export PATH=/bin HOME=/tmp TMPDIR=/tmp RUST_BACKTRACE=1 LC_ALL=C PROPTEST_CASES=32 HUGEKIT_MAY_BREAK_MEMORY=1
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mkdir -p /dev/shm /dev/pts
mount -t devpts devpts /dev/pts
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
mount -t tmpfs -o mode=1777 tmpfs /tmp
ln -sf /proc/self/fd /dev/fd
ip link set lo up
ulimit -c 0
stty -F PORT raw -echo
say() { echo "$*" >PORT; }

# NAME SECONDS COMMAND...: what hangs is ended, after the kernel has printed where all threads are. The first process adopts
# what a command leaves behind; ended with its group, none of it keeps the pipe open.
run() {
    name=$1 seconds=$2
    shift 2
    say "@begin $name"
    {
        setsid "$@" 2>&1 &
        command=$!
        (sleep $seconds; echo t >/proc/sysrq-trigger; kill -9 -$command) >/dev/null 2>&1 &
        bound=$!
        wait $command
        echo $? >/run/status
        kill $bound
        kill -9 -$command 2>/dev/null
    } | sed 's/^/| /' >PORT
    say "@end $(cat /run/status)"
}

# FILE VALUE: what this kernel does not have or does not permit is said.
set_to() { echo "$2" >"$1" || say "@refused $1 = $2"; }

# FILE WORD: a counter of the kernel's that stands still is said.
has_counted() {
    count=$(awk -v word="$2" 'word == "" || $1 == word { print (word == "" ? $1 : $2) + 0; exit }' "$1")
    [ "${count:-0}" -gt 0 ] || say "@still $1 $2"
}

echo root:x:0:0::/root:/bin/sh >/etc/passwd
echo user:x:1000:1000::/tmp:/bin/sh >>/etc/passwd
"#;

/// A file on the disk that is mounted where tests make swap files of their own.
const SWAP: &str = r#"
mkdir -p /var/tmp
mke2fs -F /dev/nvme0n1 >/dev/null
mount -t ext4 /dev/nvme0n1 /var/tmp
dd if=/dev/zero of=/var/tmp/swap bs=1M count=MIB 2>/dev/null
mkswap /var/tmp/swap
swapon /var/tmp/swap || say "no swap"
"#;

/// The script.
pub(super) fn script(machine: &Machine) -> String {
    let port = match machine.kernel.architecture {
        Architecture::X86_64 => "/dev/ttyS1",
        Architecture::Aarch64 => "/dev/ttyS0",
    };
    let mut lines = vec![BEGIN.replace("PORT", port)];
    lines.extend(settings(machine).iter().map(|(file, value)| format!("set_to {file} {value:?}")));
    if machine.swap_mib > 0 {
        lines.push(SWAP.replace("MIB", &machine.swap_mib.to_string()));
    }
    if machine.rights == Rights::NoUserfaultfd {
        lines.push("rm -f /dev/userfaultfd".to_owned());
    }
    lines.push("say \"@up $(uname -r)\"".to_owned());
    // What the doctor says is held against the table, of which soft offlining takes a page now and then.
    let (doctor, others): (Vec<&Run>, Vec<&Run>) =
        machine.runs.iter().partition(|run| run.program == Program::Doctor);
    lines.extend(doctor.into_iter().map(|run| line(machine, run)));
    lines.extend(machine.beside.iter().filter_map(|beside| loop_of(*beside)).map(str::to_owned));
    if machine.beside.contains(&Beside::SoftOffline) {
        lines.push(REFILL.replace("PAGES", &machine.reserved.pages_2m.to_string()));
    }
    lines.extend(others.into_iter().map(|run| line(machine, run)));
    let has_counted = |(file, word): &(_, _)| format!("has_counted {file} {word:?}");
    lines.extend(machine.counters.iter().map(has_counted));
    lines.push("say @off\npoweroff -f\n".to_owned());
    lines.join("\n")
}

/// The line of the script that runs a command.
fn line(machine: &Machine, run: &Run) -> String {
    let words = [vec![run.program.file()], arguments(machine, run)].concat().join(" ");
    let command = match (machine.runner(run.program), machine.rights) {
        (Some(runner), _) => format!("{runner} {words}"),
        (None, Rights::User) => format!("su -s /bin/sh -c '{words}' user"),
        (None, _) => words,
    };
    format!("run '{}' {} {command}", run.name(), run.seconds)
}

/// What a program is given: of the table, and as many threads as there are CPUs for those that test.
fn arguments(machine: &Machine, run: &Run) -> Vec<String> {
    let table = run.program.leading().iter().chain(run.arguments);
    let mut all: Vec<String> = table.map(|&argument| argument.to_owned()).collect();
    if run.program.is_tests() {
        all.push(format!("--test-threads={}", machine.cpus));
    }
    all
}

fn settings(machine: &Machine) -> Vec<(&'static str, &'static str)> {
    let mut settings = vec![
        ("/sys/kernel/mm/transparent_hugepage/enabled", machine.thp),
        ("/sys/kernel/mm/transparent_hugepage/shmem_enabled", machine.shmem_thp),
    ];
    settings.extend(machine.settings);
    settings
}

/// A reserved page of which a part is taken out of use is reserved no more: the kernel finds another one.
const REFILL: &str =
    "(while sleep 1; do echo PAGES >/proc/sys/vm/nr_hugepages; done) >/dev/null 2>&1 &";

fn loop_of(beside: Beside) -> Option<&'static str> {
    match beside {
        Beside::Compaction => {
            Some("(while sleep 1; do echo 1 >/proc/sys/vm/compact_memory; done) >/dev/null 2>&1 &")
        }
        // Anywhere in one half: pages of programs are moved, free ones are taken out of use, and the kernel refuses its
        // own. None comes back, and after minutes no huge page would be whole in all of the memory.
        Beside::SoftOffline => Some(
            "pages=$(($(awk '/MemTotal/ { print $2 }' /proc/meminfo) / 8))\n\
             (while sleep 0.1; do\n    \
             echo $((((RANDOM * 32768 + RANDOM) % pages) * 4096)) >/sys/devices/system/memory/soft_offline_page\n\
             done) >/dev/null 2>&1 &",
        ),
        // By the kernel's thread, of what runs by a runner.
        Beside::Merging => None,
    }
}
