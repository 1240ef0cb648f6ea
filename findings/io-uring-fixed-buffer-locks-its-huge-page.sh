#!/bin/sh
# Linux, io_uring: a fixed buffer (IORING_REGISTER_BUFFERS) counts for RLIMIT_MEMLOCK with the whole huge page in which
# it lies, not with its bytes. Four buffers of 4 KiB on four transparent huge pages need 8 MiB, the usual limit, and are
# refused with ENOMEM. A program whose heap becomes huge, by another allocator or another policy, can no longer register
# the buffers that it could before. io_uring_register(2) says that the buffers are charged against the limit.
#
# Seen with Python 3.11.7 and Linux 6.18.44, limit of 8 MiB, user 65534, buffers of 4 KiB that are 2 MiB apart; VmPin:
#   base pages: 3 buffers 12 kB, 4 buffers 16 kB; huge pages: 3 buffers 6144 kB, 4 buffers ENOMEM
#
# Needs python3, io_uring and transparent huge pages. Exits with 1 if the behaviour differs.
set -eu
if grep -q '\[never\]' /sys/kernel/mm/transparent_hugepage/enabled; then
    echo "no transparent huge pages: not tried"
    exit 0
fi
python3 - <<'PYTHON'
import ctypes
import errno
import mmap
import os
import platform
import re
import resource
import sys

PAGE, MIB = mmap.PAGESIZE, 1 << 20
HUGE, COUNT = 2 * MIB, 4
SETUP, REGISTER = 425, 427  # System calls, the same on all architectures.
REGISTER_BUFFERS, UNREGISTER_BUFFERS = 0, 1
libc = ctypes.CDLL(None, use_errno=True)


class Part(ctypes.Structure):
    _fields_ = [("start", ctypes.c_void_p), ("len", ctypes.c_size_t)]


def kib(name, file):
    with open(f"/proc/self/{file}") as status:
        return int(re.search(rf"^{name}:\s+(\d+)", status.read(), re.MULTILINE)[1])


def pinned(ring, advice):
    memory = mmap.mmap(-1, (COUNT + 1) * HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(advice)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    start += -start % HUGE
    before = kib("AnonHugePages", "smaps_rollup")
    ctypes.memset(start, 1, COUNT * HUGE)
    if advice == mmap.MADV_HUGEPAGE and kib("AnonHugePages", "smaps_rollup") - before < COUNT * HUGE >> 10:
        sys.exit("too few free blocks of 2 MiB")
    answer = []
    for count in (COUNT - 1, COUNT):
        parts = (Part * count)(*(Part(start + index * HUGE, PAGE) for index in range(count)))
        if libc.syscall(REGISTER, ring, REGISTER_BUFFERS, ctypes.byref(parts), count) < 0:
            answer.append(errno.errorcode[ctypes.get_errno()])
        else:
            answer.append(kib("VmPin", "status"))
            assert libc.syscall(REGISTER, ring, UNREGISTER_BUFFERS, None, 0) == 0
    return answer


resource.setrlimit(resource.RLIMIT_MEMLOCK, (8 * MIB, 8 * MIB))
if os.getuid() == 0:
    # The limit is not for who has CAP_IPC_LOCK.
    os.setgid(65534)
    os.setuid(65534)
ring = libc.syscall(SETUP, 1, ctypes.byref((ctypes.c_uint32 * 30)()))
if ring < 0:
    print(f"no io_uring here: {os.strerror(ctypes.get_errno())}: not tried")
    sys.exit(0)
base, huge = pinned(ring, mmap.MADV_NOHUGEPAGE), pinned(ring, mmap.MADV_HUGEPAGE)
print(f"Linux {platform.release()}, VmPin of 3 and 4 buffers of 4 KiB: base pages: {base}; huge pages: {huge}")
assert base == [12, 16] and huge == [6144, "ENOMEM"], (base, huge)
PYTHON
