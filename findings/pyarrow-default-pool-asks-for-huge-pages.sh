#!/bin/sh
# pyarrow 26.0.1: its default memory pool, mimalloc, calls madvise(MADV_HUGEPAGE) for its arena of 1 GiB, so under the
# policy "madvise" every buffer of Arrow is on huge pages without being asked for. The pools "jemalloc" and "system" of
# the same wheel have none. mimalloc of version 3 does so (the crate mimalloc 0.1.52 too), and 2.0.9 does not. Memory
# that is freed stays: a deleted buffer of 256 MiB is in the process until release_unused(). The other pools give it
# back at once. MIMALLOC_ALLOW_THP=0 is no switch of the pool: it is PR_SET_THP_DISABLE for the process, and numpy loses
# its huge pages.
#
# Seen with pyarrow 26.0.1, numpy 2.4.6, Python 3.11.7, Linux 6.18.44, policy "madvise", one buffer of 256 MiB; MiB on
# huge pages, MiB in memory two seconds after it was deleted, and after release_unused():
#   mimalloc: 258, 258, 2; jemalloc: 0, 1, 1; system: 0, 0, 0
#
# Needs Python 3.11 with venv, and the policy "madvise" of transparent huge pages. Exits with 1 if the behaviour
# differs.
set -eu
if ! grep -q '\[madvise\]' /sys/kernel/mm/transparent_hugepage/enabled; then
    echo "the policy of transparent huge pages is not madvise: not tried"
    exit 0
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" --quiet install pyarrow==26.0.1 numpy==2.4.6
"$folder/venv/bin/python" - <<'PYTHON'
import ctypes
import re
import time

import pyarrow

LEN = 256 << 20


def mib(name):
    with open("/proc/self/smaps_rollup") as smaps:
        return int(re.search(rf"^{name}:\s+(\d+)", smaps.read(), re.MULTILINE)[1]) >> 10


def seen(pool):
    others, huge = mib("Rss"), mib("AnonHugePages")
    buffer = pyarrow.allocate_buffer(LEN, memory_pool=pool)
    ctypes.memset(buffer.address, 1, LEN)
    huge = mib("AnonHugePages") - huge
    del buffer
    time.sleep(2)
    kept = mib("Rss") - others
    pool.release_unused()
    return huge, kept, mib("Rss") - others


assert pyarrow.default_memory_pool().backend_name == "mimalloc"
pools = (pyarrow.mimalloc_memory_pool(), pyarrow.jemalloc_memory_pool(), pyarrow.system_memory_pool())
said = {pool.backend_name: seen(pool) for pool in pools}
print(f"pyarrow {pyarrow.__version__}, MiB huge, kept, released: {said}")
huge, kept, released = said["mimalloc"]
# Few free blocks of 2 MiB: half is enough to tell them apart.
assert huge >= 128 and kept >= 250 and released <= 16, said
assert all(huge == 0 and kept <= 16 for huge, kept, _ in (said["jemalloc"], said["system"])), said
PYTHON
