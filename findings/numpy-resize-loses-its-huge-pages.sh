#!/bin/sh
# numpy 2.4.6 with glibc: ndarray.resize to a larger size ends on base pages, although numpy advises huge pages for
# arrays of 4 MiB and more. Its advice leaves out the first page of the block, which thereby becomes a mapping of its
# own. mremap(2) refuses to enlarge two mappings (EFAULT), so realloc(3) cannot move the pages: it allocates, copies all
# bytes and frees, and both blocks are in memory meanwhile. numpy does not advise the new block, so all of it is on base
# pages, also the bytes that are written later. With NUMPY_MADVISE_HUGEPAGE=0 the same resize moves the pages and copies
# nothing.
#
# Seen with numpy 2.4.6, Python 3.11.7, glibc 2.36, Linux 6.18.44, policy "madvise"; MiB of 64 on huge pages, the same
# after resize to 80 MiB and writing all of it, and MiB by which the peak of memory exceeded 80:
#   advice: 62, 0, 48; no advice: 0, 0, 0
#
# Needs Python 3.11 with venv, glibc, and the policy "madvise" of transparent huge pages. Exits with 1 if the behaviour
# differs.
set -eu
if ! grep -q '\[madvise\]' /sys/kernel/mm/transparent_hugepage/enabled; then
    echo "the policy of transparent huge pages is not madvise: not tried"
    exit 0
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" --quiet install numpy==2.4.6
cat > "$folder/resize.py" <<'PYTHON'
import re

import numpy

MIB = 1 << 20


def mib(name, file):
    with open(f"/proc/self/{file}") as status:
        return int(re.search(rf"^{name}:\s+(\d+)", status.read(), re.MULTILINE)[1]) >> 10


others = mib("VmRSS", "status")
array = numpy.ones(64 * MIB, dtype="u1")
before = mib("AnonHugePages", "smaps_rollup")
array.resize(80 * MIB, refcheck=False)
array[:] = 1
print(before, mib("AnonHugePages", "smaps_rollup"), max(mib("VmHWM", "status") - others - 80, 0))
PYTHON
with=$(NUMPY_MADVISE_HUGEPAGE=1 "$folder/venv/bin/python" "$folder/resize.py")
without=$(NUMPY_MADVISE_HUGEPAGE=0 "$folder/venv/bin/python" "$folder/resize.py")
echo "numpy 2.4.6, huge before, huge after, peak above: advice: $with; no advice: $without"
# Few free blocks of 2 MiB: some huge pages before are enough.
# shellcheck disable=SC2086 # Three numbers each.
set -- $with $without
[ "$1" -ge 2 ] && [ "$2" = 0 ] && [ "$3" -ge 32 ] && [ "$4" = 0 ] && [ "$5" = 0 ] && [ "$6" -le 8 ]
