#!/bin/busybox sh
# The first process of a guest. /guest.sh has its port and its function `guest`: it sets the kernel as the table says, runs
# one command after the other, and reports on the port how each ended.
/bin/busybox mkdir -p /proc /sys /dev /tmp /root /run /etc
/bin/busybox mount -t proc proc /proc
/bin/busybox --install -s /bin
export PATH=/bin HOME=/tmp TMPDIR=/tmp RUST_BACKTRACE=1 LC_ALL=C PROPTEST_CASES=32 HUGEKIT_MAY_BREAK_MEMORY=1
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
# The archive has no device: the kernel has started this process without a console.
exec </dev/console >/dev/console 2>&1
mkdir -p /dev/shm /dev/pts
mount -t devpts devpts /dev/pts
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
mount -t tmpfs -o mode=1777 tmpfs /tmp
ln -sf /proc/self/fd /dev/fd
ip link set lo up
ulimit -c 0
. /guest.sh
stty -F $port raw -echo
say() { echo "$*" >$port; }

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
    } | sed 's/^/| /' >$port
    say "@end $(cat /run/status)"
}

# FILE VALUE: a file that this kernel does not have, or a value that it refuses, is reported.
set_to() { echo "$2" >"$1" || say "@refused $1 = $2"; }

# The modules of the archive are loaded, each behind those that it needs.
modules() {
    while read -r name; do
        insmod /modules/$name.ko || say "@refused module $name"
    done </modules/order
}

# FILE [WORD]: a counter of the kernel's that stands still is reported.
has_counted() {
    count=$(awk -v word="$2" 'word == "" || $1 == word { print (word == "" ? $1 : $2) + 0; exit }' "$1")
    [ "${count:-0}" -gt 0 ] || say "@still $1 $2"
}

# MIB: a file on the disk that is mounted where tests make swap files of their own.
swap() {
    mkdir -p /var/tmp
    mke2fs -F /dev/nvme0n1 >/dev/null
    mount -t ext4 /dev/nvme0n1 /var/tmp
    dd if=/dev/zero of=/var/tmp/swap bs=1M count=$1 2>/dev/null
    mkswap /var/tmp/swap
    swapon /var/tmp/swap || say "no swap"
}

# SECONDS COMMAND: again and again, beside all that runs.
beside() {
    (while sleep "$1"; do eval "$2"; done) >/dev/null 2>&1 &
}

compaction() { beside 1 'echo 1 >/proc/sys/vm/compact_memory'; }

# PAGES: pages are moved away as a memory controller that counts errors has them moved, anywhere in one half of the memory:
# pages of programs are moved, free ones are taken out of use, and the kernel refuses its own. None comes back, and after
# minutes no huge page would be whole in all of the memory. The kernel replaces a reserved page when it is told their number.
soft_offline() {
    half=$(($(awk '/MemTotal/ { print $2 }' /proc/meminfo) / 8))
    beside 0.1 'echo $((((RANDOM * 32768 + RANDOM) % half) * 4096)) >/sys/devices/system/memory/soft_offline_page'
    beside 1 "echo $1 >/proc/sys/vm/nr_hugepages"
}

# The kernel's own thread merges equal pages of what runs by `/xtask become --merged`.
merging() { :; }

echo root:x:0:0::/root:/bin/sh >/etc/passwd
echo user:x:1000:1000::/tmp:/bin/sh >>/etc/passwd
guest
say @off
poweroff -f
