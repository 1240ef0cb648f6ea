#!/bin/sh
# Linux, userfaultfd(2): UFFDIO_WRITEPROTECT over a range of which one mapping is not registered answers ENOENT, and has
# protected the mappings before that one. The call has no field that says how far it came, as UFFDIO_COPY and
# UFFDIO_ZEROPAGE have. A program that takes the error for "nothing was done" has pages that fault, and a thread that
# writes there waits for an answer that nobody gives. UFFDIO_WRITEPROTECT(2const) of man-pages 6.9.1 and 6.14 says only
# that the range is not valid.
#
# Seen on Linux 6.18.44, x86-64, with ioctl-opt 1.3, which makes the numbers of the calls:
#   answer: ENOENT; protected: before yes, between no, behind no
#
# Needs Python 3 with venv, and userfaultfd for faults of user code. Exits with 1 if the behaviour differs.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" --quiet install ioctl-opt==1.3
"$folder/venv/bin/python" - <<'PYTHON'
import ctypes, errno, mmap, os, struct, sys
from ioctl_opt import IOWR

PAGE = mmap.PAGESIZE
LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.mmap.restype = ctypes.c_void_p
LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
USERFAULTFD = {"x86_64": 323, "aarch64": 282}[os.uname().machine]
USER_MODE_ONLY, WITH_WP, MODE_WP = 1, 1, 2



def call(descriptor, number, words):
    """An ioctl whose argument is so many words of 64 bits; its error, or 0."""
    kind = type(f"Words{len(words)}", (ctypes.Structure,), {"_fields_": [("words", ctypes.c_uint64 * len(words))]})
    argument = kind((ctypes.c_uint64 * len(words))(*words))
    request = IOWR(0xAA, number, kind)
    return 0 if LIBC.ioctl(descriptor, ctypes.c_ulong(request), ctypes.byref(argument)) == 0 else ctypes.get_errno()


def is_protected(address):
    with open("/proc/self/pagemap", "rb") as pagemap:
        pagemap.seek(address // PAGE * 8)
        return struct.unpack("Q", pagemap.read(8))[0] >> 57 & 1 == 1


descriptor = LIBC.syscall(USERFAULTFD, os.O_CLOEXEC | USER_MODE_ONLY)
if descriptor < 0:
    sys.exit(f"userfaultfd is not permitted here: {os.strerror(ctypes.get_errno())}")
if error := call(descriptor, 0x3F, [0xAA, WITH_WP, 0]):
    sys.exit(f"this kernel has no write protection by userfaultfd: {os.strerror(error)}")
start = LIBC.mmap(None, 3 * PAGE, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
pages = [start + index * PAGE for index in range(3)]
for page in pages:
    ctypes.memset(page, 1, PAGE)
for page in (pages[0], pages[2]):
    assert call(descriptor, 0x00, [page, PAGE, MODE_WP, 0]) == 0, "it cannot be registered"
answer = call(descriptor, 0x06, [start, 3 * PAGE, 1])
before, between, behind = ("yes" if is_protected(page) else "no" for page in pages)
said = f"answer: {errno.errorcode.get(answer, answer)}; protected: before {before}, between {between}, behind {behind}"
print(f"Linux {os.uname().release}: {said}")
sys.exit(said != "answer: ENOENT; protected: before yes, between no, behind no")
PYTHON
