#!/bin/sh
# Linux 6.18: MADV_COLD, MADV_FREE or MADV_PAGEOUT of one page of a transparent huge page splits the huge page at once,
# and the split (from 6.12 on) replaces each of its pages that has only zeroes by the zero page. So advice for 4 KiB takes
# 2 MiB from a process that populates its memory before it needs it (MADV_POPULATE_WRITE, prealloc of QEMU, a cleared
# heap), and each later write is a page fault of 4 KiB again. This happens without pressure and without swap.
# MADV_DONTNEED of one page frees this page only. On base pages no advice frees pages beside its range. madvise(2) of
# man-pages 6.03 calls MADV_COLD nondestructive, and speaks of the pages in the range.
#
# Seen with Python 3.11.7 and Linux 6.18.44, without swap, 64 MiB that were populated and not written; KiB that leave
# Rss when one page of each 2 MiB gets the advice:
#   huge pages: cold 65536, free 65536, pageout 65536, dontneed 128; base pages: cold 0, free 0, pageout 0, dontneed 128
#
# Needs python3, Linux 6.12 and transparent huge pages. Exits with 1 if the behaviour differs.
set -eu
settings=/sys/kernel/mm/transparent_hugepage
if [ ! -e $settings/shrink_underused ] || grep -q '\[never\]' $settings/enabled; then
    echo "Linux $(uname -r) is older than 6.12, or makes no transparent huge pages: not tried"
    exit 0
fi
python3 - <<'PYTHON'
import ctypes
import mmap
import platform
import re

PAGE, MIB = mmap.PAGESIZE, 1 << 20
HUGE, LEN = 2 * MIB, 64 * MIB
ADVICE = {"cold": 20, "free": 8, "pageout": 21, "dontneed": 4}
POPULATE_WRITE = 23
libc = ctypes.CDLL(None, use_errno=True)
libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def kib(name):
    with open("/proc/self/smaps_rollup") as smaps:
        return int(re.search(rf"^{name}:\s+(\d+)", smaps.read(), re.MULTILINE)[1])


def freed(advice, size):
    memory = mmap.mmap(-1, LEN + HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    start += -start % HUGE
    assert libc.madvise(start, LEN, size) == 0 and libc.madvise(start, LEN, POPULATE_WRITE) == 0
    assert size != mmap.MADV_HUGEPAGE or kib("AnonHugePages") >= LEN // 2048, "too few free blocks of 2 MiB"
    before = kib("Rss")
    for at in range(start, start + LEN, HUGE):
        assert libc.madvise(at + 5 * PAGE, PAGE, advice) == 0
    return before - kib("Rss")


sizes = (mmap.MADV_HUGEPAGE, mmap.MADV_NOHUGEPAGE)
huge, base = ({name: freed(advice, size) for name, advice in ADVICE.items()} for size in sizes)
print(f"Linux {platform.release()}: huge pages: {huge}; base pages: {base}")
asked = LEN // HUGE * PAGE >> 10
for name in ("cold", "free", "pageout"):
    # Python's own memory may move by some pages.
    assert huge[name] >= LEN // 2048 and base[name] <= asked + 64, (huge, base)
assert max(huge["dontneed"], base["dontneed"]) <= asked + 64, (huge, base)
PYTHON
