"""Tensors on memory of a pool that CUDA has registered.

CUDA uses the physical pages of this memory. So these pages must belong to the tensor until the registration has ended:

- A tensor's storage keeps the array that it was made of, and views and other tensors keep the storage. When the array is
  deleted, its finalizer waits for the GPUs, ends the registrations, and only then drops the region.
- The region is pinned before it is registered. So a fork or a snapshot copies its bytes at once, and the region keeps its
  pages.
- If a registration cannot be ended, the region stays allocated and pinned permanently.
- When the interpreter ends, nothing is done: CUDA may be unloaded, and the kernel ends all registrations of a process.
- In a child of ``os.fork``, nothing is done either: neither CUDA nor the memory is usable there.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
import warnings
import weakref
from typing import Any

import torch

import hugekit

# Numbers of CUDA's errors, which HIP shares.
_NO_MEMORY = 2
_NOT_REGISTERED = 713
# cudaHostRegisterPortable: the memory is pinned for every GPU of the process, as PyTorch's own is.
_PORTABLE = 1

# What CUDA may still write to.
_kept: list[_Registered] = []


def pinned(
    *size: Any,
    dtype: torch.dtype | None = None,
    pool: hugekit.Pool | None = None,
    piece: int | None = None,
    threads: int | None = None,
) -> torch.Tensor:
    """Make a zeroed CPU tensor in pinned memory on huge pages, for copies from and to GPUs.

    ``torch.zeros(size, pin_memory=True)`` calls ``cudaHostAlloc``, which allocates and pins under a lock of the driver.
    This function gets zeroed memory from a pool, which was populated in parallel, and calls ``cudaHostRegister``.
    ``tensor.is_pinned()`` is True, also for all views of the tensor. The registration ends, and the memory returns to the pool,
    when the tensor, its views and its storage are deleted. This waits for the work of all GPUs that the process uses.

    Forks and snapshots of the memory copy all of it at once, so the pages that the GPU uses stay the tensor's. The pool
    must have as many free bytes. Children of ``os.fork`` do not inherit the memory: an access to it ends the child with
    SIGSEGV.

    Args:
        size: numbers, or a tuple or list of numbers, as for ``torch.zeros``.
        dtype: the dtype of the tensor. By default ``torch.get_default_dtype()``.
        pool: the pool for the memory. By default process-wide pools, which grow; ``hugekit.trim()`` returns their unused memory.
        piece: bytes that are registered by one call, a multiple of the page size. By default all bytes, because
            CUDA refuses a copy that crosses the end of a registration ("invalid argument"). Set this if CUDA refuses
            one call for all bytes (drivers have refused 512 GiB), and copy only within pieces.
        threads: the number of threads that populate and map the memory. By default as many as are useful.

    Raises:
        RuntimeError: there is no GPU, or CUDA has refused to register the memory.
        MemoryError: memory is short, or CUDA reports this.
        ValueError: a negative size, or a piece that is not a multiple of the page size.

    After an error, nothing is registered and the memory is in the pool again.
    """
    shape = torch.Size(size[0] if len(size) == 1 and not hasattr(size[0], "__index__") else size)
    dtype = torch.get_default_dtype() if dtype is None else dtype
    if not torch.cuda.is_available():
        raise RuntimeError(
            "no memory can be pinned: torch.cuda.is_available() is False. For a tensor on huge pages that is not "
            "pinned, write torch.from_numpy(hugekit.zeros(shape, dtype))"
        )
    if piece is not None and (piece <= 0 or piece % mmap.PAGESIZE):
        raise ValueError(f"piece is {piece} bytes, and must be a multiple of the page size, {mmap.PAGESIZE} bytes")
    if 0 in shape:
        return torch.zeros(shape, dtype=dtype)
    array = hugekit.zeros(shape.numel() * dtype.itemsize, "u1", pool=pool, threads=threads)
    region, _ = hugekit.region_of(array)
    region.populate(threads=threads)
    registered = _Registered(region)
    weakref.finalize(array, registered.end).atexit = False
    refused = registered.begin(piece or len(region))
    if refused is not None:
        # The traceback of the error must not keep the memory.
        del array, region, registered
        raise refused
    return torch.frombuffer(array, dtype=dtype).reshape(shape)


class _Registered:
    """The registrations of one region."""

    def __init__(self, region: hugekit.Region) -> None:
        self._region = region
        self._pin = region.pin()
        self._cudart: Any = torch.cuda.cudart()
        self._process = os.getpid()
        # The addresses of pieces that are registered, or that are about to be registered.
        self._pieces: list[int] = []

    def begin(self, piece: int) -> Exception | None:
        """Register the region piece by piece. Return the error of CUDA if it refuses a piece."""
        for offset in range(0, len(self._region), piece):
            length = min(piece, len(self._region) - offset)
            self._pieces.append(self._region.address + offset)
            error = self._cudart.cudaHostRegister(self._pieces[-1], length, _PORTABLE)
            if int(error):
                self._pieces.pop()
                return self._refusal(error, offset, length)
        return None

    def _refusal(self, error: Any, offset: int, length: int) -> Exception:
        _clear_error()
        limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
        allowed = "unlimited" if limit == resource.RLIM_INFINITY else f"{limit} bytes"
        refusal = (MemoryError if int(error) == _NO_MEMORY else RuntimeError)(
            f"CUDA did not pin {length} bytes at offset {offset} of {len(self._region)}: "
            f"{self._cudart.cudaGetErrorString(error)} (error {int(error)}). RLIMIT_MEMLOCK is {allowed}"
        )
        refusal.add_note(
            "remedy: pin less memory. If the limit is too low, raise it: ulimit -l, or --ulimit memlock=-1 for a container. "
            "If only a large tensor is refused, give piece=64 << 30, and copy within pieces"
        )
        return refusal

    def end(self) -> None:
        """End all registrations: the finalizer of the memory, which owns this object and so the region."""
        if self._process != os.getpid():
            return
        try:
            _wait_for_gpus()
            for address in self._pieces:
                error = self._cudart.cudaHostUnregister(address)
                if int(error):
                    _clear_error()
                if int(error) not in (0, _NOT_REGISTERED):
                    raise RuntimeError(f"{self._cudart.cudaGetErrorString(error)} (error {int(error)})")
        except BaseException as error:  # an interrupt, too
            _kept.append(self)
            warnings.warn(
                f"CUDA did not unpin {len(self._region)} bytes, which are kept until the process ends: {error}", RuntimeWarning
            )
        else:
            self._pin.close()


def _clear_error() -> None:
    """Clear CUDA's last error of this thread: PyTorch would report it for whatever is done next.

    ``torch.cuda.cudart()`` has no function for it. PyTorch loads its CUDA runtime with global symbols.
    """
    clear = getattr(ctypes.CDLL(None), "hipGetLastError" if torch.version.hip else "cudaGetLastError", None)
    if clear is not None:
        clear()


def _wait_for_gpus() -> None:
    """Wait for copies that were started by ``non_blocking=True``, on GPUs that this process uses."""
    for device in range(torch.cuda.device_count()):
        if torch._C._cuda_hasPrimaryContext(device):
            torch.cuda.synchronize(device)
