"""Huge-page memory for Python on Linux: clean arrays, parallel clears and copies, snapshots.

>>> import hugekit
>>> array = hugekit.zeros((1000, 1000))          # on huge pages, cleared before
>>> hugekit.copy(hugekit.empty_like(array), array, threads=2)
>>> with hugekit.snapshot(array) as moment:      # the array as it is now
...     array += 1
...     before = moment.to_numpy()
>>> float(before.max())
0.0

Processes
    Children of a fork (``os.fork``, or ``multiprocessing`` with the start method "fork") do not inherit arrays of
    :func:`zeros` and regions: touching one there ends the child with SIGSEGV. Deleting them is safe. :func:`zeros`
    makes new arrays there; pools and regions of the parent raise RuntimeError. For arrays that children inherit use
    ``zeros(shape, shared=True)``: each process sees the writes of the others. Processes that are started by "spawn" or
    "forkserver" get copies, as of any array. Children cannot use snapshots of the parent. They may write arrays that
    the parent has a snapshot of.

Signals
    If this process may handle page faults of system calls (root, or ``sysctl vm.unprivileged_userfaultfd=1``), a thread
    of hugekit does, and the program notices nothing. Otherwise snapshots copy memory at once. Faults of forks, of memory
    that is cleared at its first touch, and of snapshots for which that mode is named are handled *in place*: in a
    handler of SIGBUS, or of SIGSEGV for forks on transparent huge pages. ``serving`` has the result. Enable Python's faulthandler before these are made, before or after the import of
    hugekit. If it is enabled later, hugekit installs its handlers again at the next snapshot, fork or region, but
    cannot handle faults of existing ones until then.

    Only the main interpreter of a process can import hugekit.

Threads
    Long work releases the GIL. As with numpy, the program must see to it that no other thread writes to memory that is
    being copied or cleared.
"""

from __future__ import annotations

from . import _interpreter as _interpreter  # isort: split

import logging as _logging  # A process that gives up rights may not find it later.
import sys as _sys

import numpy as _numpy

from . import _kinds
from ._checkpoints import Checkpointer, Saved, Saving, load_checkpoint, restore
from ._hugekit import (
    Image,
    Pin,
    Pool,
    Region,
    Reserve,
    Snapshot,
    SnapshotLost,
    Tender,
    View,
    __version__,
    checkpoint_vm,
    clear,
    copy,
    default_pools,
    doctor,
    empty,
    fork,
    fork_vm,
    pack_vm,
    region_of,
    set_learning,
    snapshot,
    trim,
    unpack_vm,
    warm,
    zeros,
)

if not getattr(_sys, "_is_gil_enabled", lambda: True)():
    raise ImportError(
        "hugekit needs the GIL, which PYTHON_GIL=0 or -X gil=0 disables: a snapshot would not be one moment"
    )

__all__ = [
    "Checkpointer",
    "Image",
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
    "checkpoint_vm",
    "clear",
    "copy",
    "default_pools",
    "doctor",
    "empty",
    "empty_like",
    "fork",
    "fork_vm",
    "load_checkpoint",
    "pack_vm",
    "region_of",
    "restore",
    "set_learning",
    "snapshot",
    "trim",
    "unpack_vm",
    "warm",
    "zeros",
    "zeros_like",
]


def zeros_like(array, dtype=None, *, pool=None, threads=None, shared=False):
    """Make a zeroed array on huge pages, with the shape, dtype and order of another one; see :func:`zeros`.

    >>> hugekit.zeros_like(numpy.ones((2, 3), "f4")).shape
    (2, 3)
    """
    if _kinds.is_array(array):
        array, _ = _kinds.decided(array)
    array = _numpy.asanyarray(array)
    order = "F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C"
    dtype = array.dtype if dtype is None else dtype
    return zeros(array.shape, dtype, order=order, pool=pool, threads=threads, shared=shared)


def empty_like(array, dtype=None, *, pool=None, threads=None, shared=False):
    """Make an array as :func:`zeros_like` does. It is zeroed, because a pool allocates only clean memory.

    >>> hugekit.empty_like(numpy.ones((2, 3), "f4")).dtype.name
    'float32'
    """
    return zeros_like(array, dtype, pool=pool, threads=threads, shared=shared)
