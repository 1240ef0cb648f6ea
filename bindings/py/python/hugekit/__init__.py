"""Huge-page memory for Python on Linux: zeroed arrays, parallel clears and copies, snapshots.

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
    :func:`zeros` and regions: an access to such an array ends the child with SIGSEGV. Deleting it is safe. In a child,
    :func:`zeros` makes new arrays; pools and regions of the parent raise RuntimeError. For arrays that children
    inherit, use ``zeros(shape, shared=True)``: each process sees the writes of the others. Processes that "spawn" or
    "forkserver" starts get copies, as of any array. Children cannot use snapshots of the parent. They may write to
    arrays of which the parent has a snapshot.

Signals
    If this process may handle page faults of system calls (root, or ``sysctl vm.unprivileged_userfaultfd=1``), a thread
    of hugekit handles them, and the program notices nothing. Otherwise snapshots copy memory at once. Faults of forks
    and of memory that is cleared at its first access are then handled *in place*: in a handler of SIGBUS, or of SIGSEGV
    for forks on transparent huge pages. So are faults of snapshots with ``fault_mode="in place"``. ``serving`` returns
    the mode. Enable Python's faulthandler before the first such snapshot, fork or region, before or after the import
    of hugekit. If faulthandler is enabled later, hugekit installs its handlers again at the next snapshot, fork or
    region, but cannot handle faults of existing ones until then.

    Only the main interpreter of a process can import hugekit.

Threads
    Long work releases the GIL. As with numpy, the program must ensure that no other thread writes to memory that is
    being copied or cleared.
"""

from __future__ import annotations

from . import _interpreter as _interpreter  # isort: split

import logging as _logging  # Later, a process without its former rights may not find it.
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
    """Make a zeroed array on huge pages, with the shape, dtype and order of another array; see :func:`zeros`.

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
    """Make an array as :func:`zeros_like` does. The array is zeroed, because a pool allocates only zeroed memory.

    >>> hugekit.empty_like(numpy.ones((2, 3), "f4")).dtype.name
    'float32'
    """
    return zeros_like(array, dtype, pool=pool, threads=threads, shared=shared)
