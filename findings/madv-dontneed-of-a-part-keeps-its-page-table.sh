#!/bin/sh
# Linux from 6.14 on, madvise(MADV_DONTNEED) of private anonymous memory: it frees a page table that has become empty, but
# only if one call covers the table's 2 MiB. Given back in two halves, or page by page, as allocators do, the table stays
# although it is as empty, and each fork(2) copies it from then on. Before 6.14 all of them stay. VmPTE of
# /proc/PID/status shows it.
#
# Seen with Python 3.11.7 and Linux 6.18.44, 64 MiB on base pages, kB of page tables before and after:
#   whole: 208 80; halves: 208 208; pages: 208 208
#
# Needs python3 and Linux 6.14. Exits with 1 if the behaviour differs.
set -eu
if [ "$(printf '%s\n6.14\n' "$(uname -r)" | sort -V | head -n 1)" != 6.14 ]; then
    echo "Linux $(uname -r) is older than 6.14: not tried"
    exit 0
fi
python3 - <<'PYTHON'
import ctypes
import mmap
import platform
import re

MIB = 1 << 20
PAGE, HUGE, LEN = mmap.PAGESIZE, 2 * MIB, 64 * MIB
libc = ctypes.CDLL(None, use_errno=True)


def tables():
    with open("/proc/self/status") as status:
        return int(re.search(r"VmPTE:\s+(\d+)", status.read())[1])


def given_back(piece):
    memory = mmap.mmap(-1, LEN + HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    start += -start % HUGE
    for at in range(start, start + LEN, PAGE):
        ctypes.c_char.from_address(at).value = b"x"
    before = tables()
    for at in range(start, start + LEN, piece):
        assert libc.madvise(ctypes.c_void_p(at), ctypes.c_size_t(piece), mmap.MADV_DONTNEED) == 0
    return before, tables()


seen = {name: given_back(piece) for name, piece in {"whole": HUGE, "halves": MIB, "pages": PAGE}.items()}
print(f"Linux {platform.release()}:", "; ".join(f"{name}: {before} {after}" for name, (before, after) in seen.items()))
freed = {name: before - after for name, (before, after) in seen.items()}
# A table has 4 KiB.
assert freed["whole"] >= 100 and freed["halves"] <= 8 and freed["pages"] <= 8, freed
PYTHON
