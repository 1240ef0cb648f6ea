#!/bin/sh
# Linux, page cache of ext4 (from 6.16 on): whoever has a cold file read ahead by aligned pieces of 2 MiB, by readahead(2)
# or posix_fadvise(POSIX_FADV_WILLNEED), gets no folio of 2 MiB, so that programs which map the file have page tables of
# 4 KiB. The same bytes are in 2 MiB folios if they were written by one
# large write(2), or if a mapping with MADV_HUGEPAGE is populated by MADV_POPULATE_READ.
#
# Seen with Python 3.11.7 and Linux 6.18.44, ext4, 32 MiB; MiB that a new mapping has by huge page tables:
#   written: 32; readahead: 0; WILLNEED: 0; populated: 32
#
# Needs python3, and ext4 below /var/tmp of Linux 6.16. Exits with 1 if the behaviour differs.
set -eu
folder=$(mktemp -d /var/tmp/finding.XXXXXX)
trap 'rm -rf "$folder"' EXIT
if [ "$(stat --file-system --format %T "$folder")" != ext2/ext3 ] ||
    [ "$(printf '%s\n6.16\n' "$(uname -r)" | sort -V | head -n 1)" != 6.16 ]; then
    echo "no ext4, or Linux $(uname -r) is older than 6.16: not tried"
    exit 0
fi
cd "$folder"
python3 - <<'PYTHON'
import ctypes
import mmap
import os
import platform
import re
import time

MIB = 1 << 20
PIECE, LEN = 2 * MIB, 32 * MIB
POPULATE_READ = 22  # MADV_POPULATE_READ of linux/mman.h
libc = ctypes.CDLL(None, use_errno=True)
file = os.open("data", os.O_RDWR | os.O_CREAT)
assert os.write(file, os.urandom(LEN)) == LEN
os.fsync(file)


def mapped():
    return mmap.mmap(file, LEN, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)


def huge():
    with mapped() as memory:
        memory.madvise(mmap.MADV_RANDOM)
        for at in range(0, LEN, mmap.PAGESIZE):
            memory[at]
        with open("/proc/self/smaps") as smaps:
            return sum(map(int, re.findall(r"FilePmdMapped:\s+(\d+)", smaps.read()))) >> 10


def again(read):
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    read()
    time.sleep(1)  # Reads that were only begun.
    return huge()


def each(read):
    return lambda: [read(at) for at in range(0, LEN, PIECE)]


def populate():
    with mapped() as memory:
        memory.madvise(mmap.MADV_HUGEPAGE)
        memory.madvise(POPULATE_READ)


seen = {
    "written": huge(),
    "readahead": again(each(lambda at: libc.readahead(file, ctypes.c_int64(at), ctypes.c_size_t(PIECE)))),
    "WILLNEED": again(each(lambda at: os.posix_fadvise(file, at, PIECE, os.POSIX_FADV_WILLNEED))),
    "populated": again(populate),
}
print(f"Linux {platform.release()}:", "; ".join(f"{name}: {mib}" for name, mib in seen.items()))
# Free memory in large blocks may be short: half is enough to tell them apart.
assert min(seen["written"], seen["populated"]) >= 16, seen
assert max(seen["readahead"], seen["WILLNEED"]) <= 2, seen
PYTHON
