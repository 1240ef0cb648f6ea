#!/bin/sh
# Linux, page cache of ext4 (from 6.16 on): a write of 4 KiB with O_DIRECT drops the whole folio from the cache in which
# these bytes lie. If a file is cached in folios of 2 MiB, one such write takes 2 MiB from the cache and the huge page
# table entry from each process that maps the file; the next touch reads from the disk. A read with O_DIRECT drops
# nothing, nor does punching a hole of 4 KiB: there the rest of the folio stays.
#
# Seen with Python 3.11.7 and Linux 6.18.44, ext4, 32 MiB; KiB that are no longer cached after one call of 4 KiB:
#   folios of 2 MiB: write 2048, read 0, punch 4; pages of 4 KiB: write 4, read 0, punch 4
# (XFS on a loop device: the same.)
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

PAGE, MIB = mmap.PAGESIZE, 1 << 20
LEN = 32 * MIB
PUNCH_HOLE, KEEP_SIZE = 2, 1  # FALLOC_FL_* of linux/falloc.h
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
buffer = mmap.mmap(-1, PAGE)


def cached(file):
    start = libc.mmap(None, LEN, mmap.PROT_READ, mmap.MAP_SHARED, file, 0)
    pages = (ctypes.c_ubyte * (LEN // PAGE))()
    assert libc.mincore(start, LEN, pages) == 0
    libc.munmap(start, LEN)
    return sum(page & 1 for page in pages) * PAGE >> 10


def punch(file, at):
    assert libc.fallocate(file, PUNCH_HOLE | KEEP_SIZE, at, PAGE) == 0


calls = {
    "write": lambda file, at: os.pwrite(file, buffer, at),
    "read": lambda file, at: os.preadv(file, [buffer], at),
    "punch": punch,
}


def dropped(write):
    """KiB that each call drops of a file that was written in pieces of `write` bytes."""
    file = os.open("data", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    for _ in range(0, LEN, write):
        assert os.write(file, bytes(write)) == write
    os.fsync(file)
    direct = os.open("data", os.O_RDWR | os.O_DIRECT)
    answer = {}
    for index, (name, call) in enumerate(calls.items()):
        before = cached(file)
        call(direct, 4 * MIB * index + 64 * PAGE)
        answer[name] = before - cached(file)
    return answer


huge, small = dropped(2 * MIB), dropped(PAGE)
print(f"Linux {platform.release()}: folios of 2 MiB: {huge}; pages of 4 KiB: {small}")
assert huge == {"write": 2048, "read": 0, "punch": 4}, huge
assert small == {"write": 4, "read": 0, "punch": 4}, small
PYTHON
