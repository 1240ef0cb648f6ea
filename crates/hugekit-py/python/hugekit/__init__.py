"""Huge-page memory for Python on Linux: clean arrays, parallel clears and copies, snapshots.

>>> import hugekit
>>> array = hugekit.zeros((1000, 1000))          # on huge pages, cleared before you asked
>>> hugekit.copy(hugekit.empty_like(array), array, threads=2)
>>> with hugekit.snapshot(array) as moment:      # the array as it is now
...     array += 1
...     before = moment.to_numpy()
>>> float(before.max())
0.0

Processes
    Memory of a pool is its process's alone. After a ``fork``, by ``os.fork`` or ``multiprocessing`` with the
    start method "fork", the child has none of the arrays of :func:`zeros` and none of the regions: touching one
    there ends the child with SIGSEGV. Letting go of them is safe, :func:`zeros` makes new ones there, pools
    and regions of the parent raise RuntimeError. Arrays that children are to have are made by
    ``zeros(shape, shared=True)``: what one process writes, the others read. Processes that are started by "spawn" or
    "forkserver" get copies, as of any array. Snapshots stay the parent's, and a child may write the arrays that one is of.

Signals
    Where this process may serve page faults of system calls (root, or ``sysctl vm.unprivileged_userfaultfd=1``),
    a thread does, and the program does not notice. Elsewhere, snapshots, forks and memory cleared at its first
    touch are served *in place*, in a handler of SIGBUS, or of SIGSEGV for forks on transparent huge pages: ``serving`` says
    which. Python's faulthandler may be
    enabled before or after hugekit is imported; hugekit takes both signals back at the next snapshot, fork or region if it was enabled in
    between, but not while it lives: enable it before.

    A program has one interpreter with hugekit, the main one: in others the import is refused.

Threads
    Long work releases the GIL. As with numpy, it is for the program to see to that no other thread writes to what is
    copied or cleared.
"""

from __future__ import annotations

from . import _interpreter as _interpreter  # isort: split

import sys as _sys

import numpy as _numpy

from ._checkpoints import Checkpointer, Saved, Saving, load_checkpoint, restore
from ._hugekit import (
    Pin,
    Pool,
    Region,
    Reserve,
    Snapshot,
    SnapshotLost,
    Tender,
    View,
    __version__,
    clear,
    copy,
    default_pools,
    doctor,
    empty,
    fork,
    region_of,
    set_learning,
    snapshot,
    trim,
    zeros,
)

if not getattr(_sys, "_is_gil_enabled", lambda: True)():
    raise ImportError(
        "hugekit needs the GIL, which PYTHON_GIL=0 or -X gil=0 keeps off: arrays of a snapshot would not be one moment"
    )

__all__ = [
    "Checkpointer",
    "Pin",
    "Pool",
    "Region",
    "Reserve",
    "Saved",
    "Saving",
    "Snapshot",
    "SnapshotLost",
    "Tender",
    "View",
    "__version__",
    "clear",
    "copy",
    "default_pools",
    "doctor",
    "empty",
    "empty_like",
    "fork",
    "load_checkpoint",
    "region_of",
    "restore",
    "set_learning",
    "snapshot",
    "trim",
    "zeros",
    "zeros_like",
]


def zeros_like(array, dtype=None, *, pool=None, threads=None, shared=False):
    """A zeroed array on huge pages, with the shape, dtype and order of another one; see :func:`zeros`.

    >>> hugekit.zeros_like(numpy.ones((2, 3), "f4")).shape
    (2, 3)
    """
    array = _numpy.asanyarray(array)
    order = "F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C"
    dtype = array.dtype if dtype is None else dtype
    return zeros(array.shape, dtype, order=order, pool=pool, threads=threads, shared=shared)


def empty_like(array, dtype=None, *, pool=None, threads=None, shared=False):
    """As :func:`zeros_like`: clean memory is all that pools allocate.

    >>> hugekit.empty_like(numpy.ones((2, 3), "f4")).dtype.name
    'float32'
    """
    return zeros_like(array, dtype, pool=pool, threads=threads, shared=shared)
