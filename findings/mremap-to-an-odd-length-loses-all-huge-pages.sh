#!/bin/sh
# Linux, mremap(2) with MREMAP_MAYMOVE: memory on transparent huge pages that grows and has to move keeps its huge page
# tables only if its new length is a multiple of 2 MiB. With any other length it moves to an address that is shifted
# against the huge pages, and every one of them is mapped by 4 KiB from then on, also those whose bytes are still one
# huge page. The old length and address do not matter. realloc(3) of glibc always asks for an odd length, because a
# header of 16 bytes is before the block, so each growth of a large Vec of Rust or of a buffer of C that moves loses all
# huge mappings that it had.
#
# Seen with Python 3.11.7 and Linux 6.18.44; MiB on huge page tables of 64 before the move, and after it:
#   to 128 MiB: 64, 64; to 128 MiB and 4 KiB: 64, 0
#
# Needs python3 and transparent huge pages. Exits with 1 if the behaviour differs.
set -eu
if grep -q '\[never\]' /sys/kernel/mm/transparent_hugepage/enabled; then
    echo "no transparent huge pages: not tried"
    exit 0
fi
python3 - <<'PYTHON'
import ctypes
import mmap
import platform
import re

PAGE, MIB = mmap.PAGESIZE, 1 << 20
HUGE, LEN = 2 * MIB, 64 * MIB
MAYMOVE = 1  # MREMAP_MAYMOVE of linux/mman.h
libc = ctypes.CDLL(None, use_errno=True)
for call in (libc.mmap, libc.mremap):
    call.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.mremap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def huge():
    with open("/proc/self/smaps_rollup") as smaps:
        return int(re.search(r"AnonHugePages:\s+(\d+)", smaps.read())[1]) >> 10


def moved(new_len):
    # The memory between the two ends is cut out, so that the first part lies aligned, and cannot grow where it is.
    whole = libc.mmap(None, LEN + 2 * HUGE, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    start = whole + -whole % HUGE
    libc.munmap(start, LEN)
    assert libc.mmap(start, LEN, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0) == start
    libc.madvise(start, LEN, mmap.MADV_HUGEPAGE)
    others = huge()
    ctypes.memset(start, 1, LEN)
    before = huge() - others
    new = libc.mremap(start, LEN, new_len, MAYMOVE)
    assert new not in (start, ctypes.c_void_p(-1).value)
    after = huge() - others
    libc.munmap(new, new_len)
    return before, after


even, odd = moved(2 * LEN), moved(2 * LEN + PAGE)
print(f"Linux {platform.release()}: to 128 MiB: {even}; to 128 MiB and 4 KiB: {odd}")
# Few free blocks of 2 MiB: half is enough to tell them apart.
assert even[0] >= 32 and even[1] == even[0], even
assert odd[0] >= 32 and odd[1] == 0, odd
PYTHON
