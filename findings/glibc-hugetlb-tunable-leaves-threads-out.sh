#!/bin/sh
# glibc 2.36 to 2.43, GLIBC_TUNABLES=glibc.malloc.hugetlb=1 ("madvise"): blocks that the main thread allocates are on
# huge pages, and the same blocks of any other thread are not. The heap of a thread grows by steps of some 100 KiB, and
# glibc advises no step that is smaller than a huge page. Only blocks that are a mapping of their own are advised in all
# threads. NEWS of glibc 2.35 says that malloc advises memory from mmap and sbrk, and the heap of a thread is from mmap.
#
# Seen with glibc 2.36 of Debian 12, Python 3.11.7, Linux 6.18.44, policy "madvise"; MiB on huge pages of 64 MiB, which
# a thread allocates in blocks of 32 KiB:
#   main thread: 64; other thread: 0; other thread, one block of 64 MiB: 64
# (2.41 and 2.43, run by their own loader: the same, but 2 MiB of 125 in a thread of 2.43.)
#
# Needs python3 on glibc 2.35, and the policy "madvise" of transparent huge pages. Exits with 1 if the behaviour
# differs.
set -eu
if ! grep -q '\[madvise\]' /sys/kernel/mm/transparent_hugepage/enabled; then
    echo "the policy of transparent huge pages is not madvise: not tried"
    exit 0
fi
GLIBC_TUNABLES=glibc.malloc.hugetlb=1 python3 - <<'PYTHON'
import ctypes
import platform
import re
import threading

KIB, MIB = 1 << 10, 1 << 20
LEN = 64 * MIB
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes = [ctypes.c_size_t]


def huge():
    with open("/proc/self/smaps_rollup") as smaps:
        return int(re.search(r"AnonHugePages:\s+(\d+)", smaps.read())[1]) >> 10


def allocated(block):
    before = huge()
    for _ in range(LEN // block):
        ctypes.memset(libc.malloc(block), 1, block)
    return huge() - before


def other(block):
    answer = []
    thread = threading.Thread(target=lambda: answer.append(allocated(block)))
    thread.start()
    thread.join()
    return answer[0]


main, thread, large = allocated(32 * KIB), other(32 * KIB), other(LEN)
print(f"{' '.join(platform.libc_ver())}: main thread: {main}; other thread: {thread}; other thread, one block: {large}")
# Few free blocks of 2 MiB: half is enough to tell them apart.
assert main >= 32 and large >= 32 and thread <= 4, (main, thread, large)
PYTHON
