#!/bin/sh
# Linux from 6.7 on, PAGEMAP_SCAN of /proc/PID/pagemap: memory that no userfaultfd has protected is PAGE_IS_WRITTEN, also
# if it was only read, and if it was never touched but shares its page table with a page that was. Protected with WP_ASYNC
# and WP_UNPOPULATED, untouched pages become PAGE_IS_SWAPPED on a machine without swap, and so do pages of
# MADV_GUARD_INSTALL. Bit 62 of the page map, "swapped", is set for both. PAGEMAP_SCAN(2const) of man-pages 6.9.1 defines
# PAGE_IS_WRITTEN as written since it was protected, and PAGE_IS_SWAPPED as swapped. A program that copies what is written
# or swapped copies all. (A patch of July 2026 gives PAGE_IS_WRITTEN only to memory that is registered.)
#
# Seen with Python 3.11.7 and Linux 6.18.44; one page written, one read, one untouched:
#   free: WRITTEN PRESENT, WRITTEN PRESENT PFNZERO, WRITTEN; protected: PRESENT, PRESENT PFNZERO, SWAPPED; bit 62: 0 0 1
#
# Needs python3, Linux from 6.7 to 7.2, and userfaultfd for faults of user code. Exits with 1 if the behaviour differs.
set -eu
if [ "$(printf '%s\n6.7\n' "$(uname -r)" | sort -V | head -n 1)" != 6.7 ] ||
    [ "$(printf '%s\n7.3\n' "$(uname -r)" | sort -V | head -n 1)" = 7.3 ]; then
    echo "Linux $(uname -r) is not one of 6.7 to 7.2: not tried"
    exit 0
fi
python3 - <<'PYTHON'
import ctypes
import mmap
import os
import platform
import struct
import sys

PAGE, MIB = mmap.PAGESIZE, 1 << 20
USERFAULTFD = {"x86_64": 323, "aarch64": 282}[os.uname().machine]
USER_MODE_ONLY, MODE_WP = 1, 2
WP_ASYNC, WP_UNPOPULATED = 1 << 15, 1 << 13
API, REGISTER, WRITEPROTECT = 0x3F, 0x00, 0x06
NAMES = ("WPALLOWED", "WRITTEN", "FILE", "PRESENT", "SWAPPED", "PFNZERO", "HUGE", "SOFT_DIRTY")
libc = ctypes.CDLL(None, use_errno=True)


def control(descriptor, kind, number, words):
    """An ioctl that reads and writes `words`, of 64 bits each; its answer."""
    argument = (ctypes.c_uint64 * len(words))(*words)
    request = 3 << 30 | ctypes.sizeof(argument) << 16 | kind << 8 | number
    answer = libc.ioctl(descriptor, ctypes.c_ulong(request), ctypes.byref(argument))
    if answer < 0:
        sys.exit(f"ioctl {kind:x} {number:x}: {os.strerror(ctypes.get_errno())}")
    return answer


def categories(page):
    found = (ctypes.c_uint64 * 3)()
    with open("/proc/self/pagemap", "rb") as pagemap:
        words = [96, 0, page, page + PAGE, 0, ctypes.addressof(found), 1, 0, 0, 0, 0, (1 << len(NAMES)) - 1]
        if control(pagemap.fileno(), ord("f"), 16, words) == 0:
            return ""
    return " ".join(name for bit, name in enumerate(NAMES) if found[2] >> bit & 1 and name != "WPALLOWED")


def is_swapped(page):
    with open("/proc/self/pagemap", "rb") as pagemap:
        pagemap.seek(page // PAGE * 8)
        return struct.unpack("Q", pagemap.read(8))[0] >> 62 & 1


memory = mmap.mmap(-1, 4 * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
memory.madvise(mmap.MADV_NOHUGEPAGE)
start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
offset = -start % (2 * MIB)
memory[offset] = 1
assert memory[offset + PAGE] == 0
pages = [start + offset + index * PAGE for index in range(3)]
free = [categories(page) for page in pages]
descriptor = libc.syscall(USERFAULTFD, os.O_CLOEXEC | USER_MODE_ONLY)
if descriptor < 0:
    sys.exit(f"userfaultfd is not permitted here: {os.strerror(ctypes.get_errno())}")
control(descriptor, 0xAA, API, [0xAA, WP_ASYNC | WP_UNPOPULATED, 0])
control(descriptor, 0xAA, REGISTER, [pages[0], 3 * PAGE, MODE_WP, 0])
control(descriptor, 0xAA, WRITEPROTECT, [pages[0], 3 * PAGE, 1])
protected, bits = [categories(page) for page in pages], [is_swapped(page) for page in pages]
print(f"Linux {platform.release()}: free: {free}; protected: {protected}; bit 62: {bits}")
assert free == ["WRITTEN PRESENT", "WRITTEN PRESENT PFNZERO", "WRITTEN"], free
assert protected == ["PRESENT", "PRESENT PFNZERO", "SWAPPED"] and bits == [0, 0, 1], (protected, bits)
PYTHON
