#!/bin/sh
# Linux, page cache of ext4 (from 6.16 on): posix_fadvise(POSIX_FADV_DONTNEED) drops a folio only if one call covers all
# of it. A file that is cached in folios of 2 MiB and dropped in pieces of 1 MiB stays in memory, and each call returns
# 0. Cached in pages of 4 KiB, the same calls drop all of it. posix_fadvise(2) of man-pages 6.03 asks for offsets and
# lengths that are aligned to pages, and all of these are. So `dd iflag=nocache bs=1M` of coreutils 9.1 leaves such a
# file in memory.
#
# Seen with Python 3.11.7 and Linux 6.18.44, ext4, 32 MiB; MiB that are cached after all of the file was dropped in
# pieces:
#   folios of 2 MiB: by 4 MiB 0, by 2 MiB 0, by 1 MiB 32, by 4 KiB 32; pages of 4 KiB: 0 0 0 0
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

KIB, MIB = 1 << 10, 1 << 20
LEN = 32 * MIB
PIECES = (4 * MIB, 2 * MIB, MIB, 4 * KIB)
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


def cached(file):
    start = libc.mmap(None, LEN, mmap.PROT_READ, mmap.MAP_SHARED, file, 0)
    pages = (ctypes.c_ubyte * (LEN // mmap.PAGESIZE))()
    assert libc.mincore(start, LEN, pages) == 0
    libc.munmap(start, LEN)
    return sum(page & 1 for page in pages) * mmap.PAGESIZE // MIB


def left(write, piece):
    """MiB that are cached of a file that was written and dropped in pieces of these sizes."""
    file = os.open("data", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    for _ in range(0, LEN, write):
        assert os.write(file, bytes(write)) == write
    os.fsync(file)
    assert cached(file) == LEN // MIB
    for at in range(0, LEN, piece):
        os.posix_fadvise(file, at, piece, os.POSIX_FADV_DONTNEED)
    try:
        return cached(file)
    finally:
        os.close(file)


huge = [left(2 * MIB, piece) for piece in PIECES]
small = [left(4 * KIB, piece) for piece in PIECES]
print(f"Linux {platform.release()}: folios of 2 MiB: by 4 MiB, 2 MiB, 1 MiB, 4 KiB: {huge}; pages of 4 KiB: {small}")
# Few free blocks of 2 MiB make some folios smaller: half is enough to tell them apart.
assert max(small + huge[:2]) <= 2 and min(huge[2:]) >= 16, (huge, small)
PYTHON
