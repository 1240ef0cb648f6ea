#!/bin/sh
# jax 0.10.2, on CPUs: jax.device_put of a numpy array shares the array's memory if it is aligned to 64 bytes, so a
# later write to the numpy array changes the "immutable" jax array. Its documentation says that it returns a copy.
# numpy's large arrays mostly begin 16 bytes behind a page and are copied, so the same program is right until its arrays
# come from a mapped file, a pool or other page-aligned memory. jax.numpy.asarray is the other way round: documented to
# copy only when necessary, and to raise an error for copy=False if a copy is necessary, it copied in each case, and
# without an error.
#
# Seen with jax and jaxlib 0.10.2, numpy 2.4.6, Python 3.11.7:
#   device_put, aligned: shares; device_put, 16 behind: copies; asarray: copies; asarray(copy=False): copies
#
# Needs Python 3.11 with venv. Exits with 1 if the behaviour differs.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" --quiet install jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PYTHON'
import mmap

import jax
import numpy

COUNT = 1 << 20


def seen(make, behind=0):
    """Whether a write to the array after the call is in the result."""
    array = numpy.frombuffer(mmap.mmap(-1, 4 * COUNT + 64), dtype="f4")[behind // 4 :][:COUNT]
    array[:] = 1
    result = make(array).block_until_ready()
    array[5] = 2
    return "shares" if float(result[5]) == 2 else "copies"


said = {
    "device_put, aligned": seen(jax.device_put),
    "device_put, 16 behind": seen(jax.device_put, behind=16),
    "asarray": seen(jax.numpy.asarray),
    "asarray(copy=False)": seen(lambda array: jax.numpy.asarray(array, copy=False)),
}
print(f"jax {jax.__version__}:", "; ".join(f"{name}: {what}" for name, what in said.items()))
assert list(said.values()) == ["shares", "copies", "copies", "copies"]
PYTHON
