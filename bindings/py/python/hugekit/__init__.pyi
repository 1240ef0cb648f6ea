from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from types import EllipsisType
from typing import Any, Generic, Literal, Protocol, SupportsIndex, TypedDict, overload

import numpy as np
import numpy.typing as npt
from typing_extensions import Buffer, TypeVar

__version__: str

Array = npt.NDArray[Any]

# An array's dtype.
_D = TypeVar("_D", bound=np.generic, default=Any)
# How the arrays of a snapshot were given, as arrays and as views.
_Arrays = TypeVar("_Arrays", default=Any)
_Views = TypeVar("_Views", default=Any)
_Out = TypeVar("_Out")

_DType = type[_D] | np.dtype[_D]
_Shape = int | Sequence[int]
_Order = Literal["C", "F"]
Backing = Literal["hugetlb 1G", "hugetlb 2M", "thp", "base"]
Clearing = Literal["at allocation", "at fault"]
FaultMode = Literal["threaded", "in place"]
"""How faults are served: by a thread of hugekit, or by the thread that accesses the memory."""
Serving = Literal["threaded", "in place", "copied"]
"""As `FaultMode`, or nothing is protected because all bytes were copied at once."""

_One = SupportsIndex | slice | EllipsisType | None
_Index = _One | str | tuple[_One, ...]

class _Tensor(Protocol):
    def untyped_storage(self) -> Any: ...

# Before Python 3.12 type checkers do not know that an array has a buffer.
_Memory = Buffer | Array | _Tensor

class _Bar(Protocol):
    def update(self, n: int, /) -> Any: ...

class _File(Protocol):
    def write(self, data: Any, /) -> Any: ...

Progress = Callable[[int, int], Any] | _Bar

class _Finding(TypedDict):
    topic: str
    name: str
    value: str
    verdict: Literal["ok", "note", "limited", "missing", "unknown"]
    remedy: str | None

class _Report(TypedDict):
    schema: str
    machine: dict[str, Any]
    lines: list[_Finding]

class SnapshotLost(OSError):
    """The snapshot is lost: writers changed more than it may hold, or its memory was unmapped."""

_Path = str | PathLike[str]

class Saved:
    """The result of a save of a :class:`Checkpointer`.

    >>> weights = numpy.zeros((512, 1024))
    >>> folder = tempfile.TemporaryDirectory()
    >>> saver = hugekit.Checkpointer({"weights": weights})
    >>> saved = saver.save(folder.name + "/0.delta")
    >>> saved.is_full, saved.reason
    (True, 'it is the first one')
    """
    def __init__(
        self,
        path: str,
        is_full: bool,
        reason: str | None,
        changed: int,
        written: int,
        state: str,
        copied_bytes: int,
        copied: dict[str, str],
        paused: float,
        seconds: float,
    ) -> None: ...
    @property
    def path(self) -> str:
        """The path of the file."""
    @property
    def is_full(self) -> bool:
        """True if the file contains all arrays, so that it begins a chain."""
    @property
    def reason(self) -> str | None:
        """The reason why the file is full; None for a delta."""
    @property
    def changed(self) -> int:
        """Bytes of the arrays that the file contains or marks as zero, in blocks of 4 KiB."""
    @property
    def written(self) -> int:
        """Bytes of the file."""
    @property
    def state(self) -> str:
        """The ID of the state after this file, as ``hugekit delta info`` prints it."""
    @property
    def copied_bytes(self) -> int:
        """Bytes of the arrays that were copied at once, because these arrays cannot be protected."""
    @property
    def copied(self) -> dict[str, str]:
        """The names of the arrays that were copied at once, with the reasons."""
    @property
    def paused(self) -> float:
        """The seconds during which all Python code was stopped, so that all arrays are of one moment."""
    @property
    def seconds(self) -> float:
        """Seconds until the file was complete."""

class Saving:
    """A save that a thread is writing. ``Checkpointer.save(path, wait=False)`` returns it.

    >>> weights = numpy.ones((512, 1024))
    >>> folder = tempfile.TemporaryDirectory()
    >>> saving = hugekit.Checkpointer([weights]).save(folder.name + "/0.delta", wait=False)
    >>> weights += 1                                 # not in the file
    >>> saving.wait().is_full, saving.done()
    (True, True)
    >>> float(hugekit.load_checkpoint(folder.name + "/0.delta")[0].max())
    1.0
    """
    def wait(self, timeout: float | None = None) -> Saved:
        """Wait until the file is complete, and return the result.

        Args:
            timeout: the limit in seconds. By default no limit.

        Raises:
            TimeoutError: the save was not complete within the limit. The save continues.
            RuntimeError: this process is a forked child, and its parent makes the save.
            Exceptions: those of :meth:`Checkpointer.save`, if the save has failed.
        """
    def done(self) -> bool:
        """Return True if the save is complete or has failed.

        Raises:
            RuntimeError: this process is a forked child, and its parent makes the save.
        """

class Checkpointer:
    """A saver of arrays: the first file is full, and each later file contains only changes.

    After a save the arrays stay protected. The first write to each 2 MiB (64 KiB on base pages) is recorded, and costs
    one page fault. The next save reads only these bytes, and writes the changed blocks of 4 KiB. Each file is a delta
    for the commands ``hugekit delta info``, ``merge`` and ``apply``.

    Args:
        arrays: a dict, list or tuple of numpy arrays and CPU tensors of torch, nested to any depth, such as ``{"model":
            model.state_dict(), "optimizer": optimizer.state_dict()}``; or a function that returns such an object. Each
            save reads the object, or calls the function, again. Numbers, strings and None are saved with their values
            at that time. If the program replaces tensors instead of writing to them, pass a function. Arrays that share
            memory are stored once.
        reserve: memory for the copies that writers make while a file is written; see :class:`Reserve`.
        fault_mode: see :func:`snapshot`. The mode also applies between saves. In place, a system call that writes to an
            array fails with EFAULT unless the program called :meth:`prepare_write` before, or wrote to the same bytes
            since the last save.
        granule: see :func:`snapshot`.
        max_cow_bytes: see :func:`snapshot`.
        strict: see :func:`snapshot`. Each save copies the arrays that cannot be protected.

    A tag of each block of 4 KiB shows if the block has changed. At most 64 files of the chain stay open. If files are
    removed or written to, the next file is larger. Arrays of less than 1 MiB are copied at each save. In a forked child
    the first save is full.

    >>> weights, folder = numpy.zeros((4096, 1024)), tempfile.TemporaryDirectory()
    >>> paths = [f"{folder.name}/{number}.delta" for number in range(3)]
    >>> with hugekit.Checkpointer({"weights": weights, "step": 0}) as saver:
    ...     for path in paths:
    ...         print(saver.save(path).is_full)
    ...         weights[7] += 1
    True
    False
    False
    >>> float(hugekit.load_checkpoint(paths)["weights"][7, 0])
    2.0
    """
    def __init__(
        self,
        arrays: Any,
        *,
        reserve: Reserve | None = None,
        fault_mode: FaultMode | None = None,
        granule: Literal["huge", "small"] | None = None,
        max_cow_bytes: int | None = None,
        strict: bool = False,
    ) -> None: ...
    @overload
    def save(
        self, path: _Path, *, full: bool = False, wait: Literal[True] = True, fsync: bool = True
    ) -> Saved:
        """Save the arrays as they are now.

        Writes of Python code after the start of the call are not in the file. Writes of threads that do not hold the
        GIL during the call may be in the file or not, as for :func:`snapshot`. The file gets its name when it is
        complete. If the process is killed before, an existing file stays. If an earlier save is not complete, the call
        waits for it.

        Args:
            path: the path of the file. An existing file is replaced. If the changes would need the existing file, the
                new file is full. So one path for all saves is safe. With a new path for each save, files are smaller.
            full: save all bytes instead of the changes, so that older files are not needed. By default False.
            wait: wait until the file is complete. If False, a thread writes the file, and the call returns a
                :class:`Saving`. By default True.
            fsync: the save is complete only when the file and its name are on their device. By default True.

        Raises:
            SnapshotLost: writers changed more than ``max_cow_bytes`` before the file was complete, or the memory was
                unmapped or replaced. There is no file, and the next save is full.
            OSError: the file cannot be written, or with ``strict`` the memory cannot be protected. The next save is full.
            TypeError, ValueError: an object among the arrays cannot be saved. The message contains its name.
        """
    @overload
    def save(
        self, path: _Path, *, full: bool = False, wait: Literal[False], fsync: bool = True
    ) -> Saving: ...
    @overload
    def save(
        self, path: _Path, *, full: bool = False, wait: bool = True, fsync: bool = True
    ) -> Saved | Saving: ...
    def restore(self, paths: _Path | Sequence[_Path]) -> Any:
        """Read a checkpoint into the arrays of this object; see :func:`restore`."""
    def prepare_write(self, array: Any) -> None:
        """Let a system call write to an array, or to a contiguous view of an array, without EFAULT. The array counts as
        changed.

        Only arrays whose faults are handled in place need this call; see :func:`snapshot`.

        Raises:
            RuntimeError: a save is not complete yet.
        """
    @property
    def serving(self) -> Serving | None:
        """The mode in which faults of writers are handled since the last save: "threaded" or "in place". "copied" if
        arrays are copied at each save. None if all arrays are smaller than 1 MiB.
        """
    def close(self) -> None:
        """Lift the protection of the arrays. If a save is not complete, wait for it. A second call does nothing."""
    def __enter__(self) -> Checkpointer: ...
    def __exit__(self, *_error: object) -> None: ...

def restore(paths: _Path | Sequence[_Path], arrays: Any) -> Any:
    """Read a checkpoint into existing arrays.

    The call checks everything before a byte of an array changes: all checksums of all files, that each file follows on
    the previous file, and that the arrays have the saved names, shapes, dtypes and orders in memory.

    Args:
        paths: a full file, and the deltas that follow on it, in order.
        arrays: as for :class:`Checkpointer`. Arrays and tensors are overwritten.

    Returns:
        The saved object, with these arrays in it. Numbers, strings and None have their saved values.

    Raises:
        ValueError: a file is damaged, truncated, of another base, or in the wrong place. The message contains the name
            of the file and the offset. Or an array differs from the saved array; the message contains its name.
        OSError: a file cannot be read. If this happens after all checks, the content of the arrays is unspecified.

    >>> weights, folder = numpy.full(100_000, 7), tempfile.TemporaryDirectory()
    >>> saved = hugekit.Checkpointer({"weights": weights, "step": 3}).save(folder.name + "/0.delta")
    >>> other = numpy.zeros(100_000, int)
    >>> hugekit.restore(saved.path, {"weights": other, "step": 0})["step"], int(other[5])
    (3, 7)
    """
def load_checkpoint(paths: _Path | Sequence[_Path], *, as_numpy: bool = False) -> Any:
    """Read a checkpoint into new arrays, nested as they were saved.

    Args:
        paths: a full file, and the deltas that follow on it, in order.
        as_numpy: return numpy arrays for saved tensors. Dtypes that numpy lacks, such as bfloat16, become unsigned
            integers of the same size. By default False.

    Raises:
        ValueError: as for :func:`restore`.
        ImportError: the file contains tensors, and torch cannot be imported.
        OSError: a file cannot be read.

    >>> folder = tempfile.TemporaryDirectory()
    >>> state = {"layer": {"bias": numpy.arange(3)}, "rates": (0.1, 0.2)}
    >>> saved = hugekit.Checkpointer(state).save(folder.name + "/0.delta")
    >>> hugekit.load_checkpoint(saved.path)
    {'layer': {'bias': array([0, 1, 2])}, 'rates': (0.1, 0.2)}
    """

class Tender:
    """A tender of a process: it keeps the private memory of the process on huge pages, from outside.
    The process then forks in about a tenth of the time. The process is this process or another. Its
    bytes do not change, and nothing needs to be undone.

    A tender that is used as a context manager works in a thread of its own. It makes a pass over
    the memory at once, and another pass whenever the last forked child has ended. :meth:`collapse`
    makes one pass now, for example before workers are forked.

    Args:
        pid: the number of the process. By default this process.
        density: collapse a 2 MiB range only if at least this share of it is populated, from 0 to 1.
        growth: the most memory for filling holes, as a share of the private memory of the process.
            Holes are filled with zeroes.
        cpu_share: the most CPU time for the tender, as a share of one CPU.
        bytes_per_second: the most bytes to collapse per second.
        keep_free: bytes of available memory to leave for other programs.

    Raises:
        ValueError: there is no such process.
        PermissionError: the process belongs to another user.
        OSError: the process has another tender (EBUSY), or the kernel is older than Linux 6.1
            (EOPNOTSUPP).

    >>> import multiprocessing
    >>> try:
    ...     with hugekit.Tender() as tender:
    ...         with multiprocessing.get_context("fork").Pool(1) as pool:
    ...             answer = pool.apply(abs, (-2,))
    ... except OSError:    # not here
    ...     answer = 2
    >>> answer
    2
    """
    def __new__(
        cls,
        pid: int | None = None,
        *,
        density: float = 0.5,
        growth: float = 0.2,
        cpu_share: float = 1.0,
        bytes_per_second: int = 1073741824,
        keep_free: int = 268435456,
    ) -> Tender: ...
    @property
    def pid(self) -> int:
        """The number of the process."""
    def collapse(self) -> dict[str, Any]:
        """Make one pass over the memory now. Ctrl-C ends the pass within a tenth of a second.

        Returns:
            The output of ``hugekit tend --once --json``: the memory ``before`` and ``after`` as
                ``huge`` of ``all`` bytes, the number of 2 MiB ranges that were ``collapsed``, the
                bytes of holes that were ``filled``, and the ``hindrance`` if the pass ended early.

        Raises:
            RuntimeError: the tender works in its own thread, or has ended.
            ValueError: the process has ended.
        """
    @property
    def status(self) -> dict[str, Any] | None:
        """The work of the tender's own thread, as ``hugekit tend --json`` prints it. None before its
        first pass.
        """
    def __enter__(self) -> Tender: ...
    def __exit__(self, *exception: object) -> None: ...

class Image:
    """Sealed memory on huge pages. No process can change it, and many processes map it privately: they
    share its pages until they write to them. :meth:`load` and :meth:`of_broker` make an image.

    The memory returns to the kernel when no process has the image or a mapping of the image. If
    memory is short, the kernel does not drop the image, as it does with page cache.

    >>> with tempfile.NamedTemporaryFile() as file:
    ...     file.truncate(3 << 20)
    ...     file.write(b"what was saved")
    ...     file.flush()
    ...     image = hugekit.Image.load(file.name)
    3145728
    14
    >>> one, other = image.map(), image.map()
    >>> one[:4] = b"this"
    >>> bytes(one[:8]), bytes(other[:8]), len(one) == image.nbytes
    (b'this was', b'what was', True)
    """
    @staticmethod
    def load(
        path: _Path,
        *deltas: _Path,
        state: str | None = None,
        name: str = "image",
        threads: int | None = None,
        progress: Progress | None = None,
    ) -> Image:
        """Load a memory file of a virtual machine, or any other file. Holes and blocks of zeroes need
        no memory. Ctrl-C ends the load.

        Args:
            path: a full delta, or a raw memory file as Firecracker, Cloud Hypervisor and QEMU write
                it.
            deltas: paths of the deltas that follow, the oldest first. No merged file is written.
            state: the state of a raw memory file, as ``hugekit delta info`` prints it. A first
                delta that begins with another state is refused. By default the first delta may
                begin with any state of the same length.
            name: the name in /proc/self/maps: ``/memfd:hugekit:NAME``. By default "image".
            threads: the number of threads that read a raw memory file. By default as many as are
                useful. Deltas are applied by one thread.
            progress: called with the bytes that were read of all files; see :func:`clear`.

        Raises:
            OSError: a file cannot be read, or was changed during the load (EBUSY).
            ValueError: a file is empty or not regular, or a delta is damaged or does not follow on
                the previous file.
            MemoryError: memory is short.
        """
    @staticmethod
    def of_broker(socket: _Path, name: str) -> Image:
        """Get an image that a ``hugekit broker`` holds. The broker must run as root or as this
        process's user.

        Args:
            socket: the path of the broker's socket.
            name: the name of the image.

        Raises:
            OSError: no broker listens at the socket, or the broker has no image of this name.
        """
    def map(self) -> memoryview:
        """Map the image privately. No other process and no other mapping sees writes to this mapping.

        The first read of each 2 MiB on a huge page costs a page fault. The first write to a base
        page copies the page, and the 2 MiB around it are then mapped by base pages. If memory is
        short at this moment, the kernel's OOM killer ends a process. Children of a fork inherit the
        mapping, and each child has its own bytes.

        Returns:
            The bytes, writable. They are unmapped when the last view of them is deleted.
                ``numpy.frombuffer(view, "u1")`` makes an array of them.

        Raises:
            OSError: the process has no addresses or mappings left.
        """
    @property
    def nbytes(self) -> int:
        """The length of the image in bytes."""
    @property
    def present_bytes(self) -> int:
        """Bytes that are populated. The other bytes are zero."""
    @property
    def huge_bytes(self) -> int:
        """Bytes that were on huge pages when the image was loaded."""
    @property
    def path(self) -> str:
        """A path by which other programs of this user can open the image while this object exists,
        such as a virtual machine monitor that restores from a memory file.
        """
    def fileno(self) -> int:
        """Return the descriptor of the image, opened for reading. The descriptor belongs to this
        object. A child that inherits it, by ``pass_fds`` of :mod:`subprocess`, may open
        ``/proc/self/fd/N``.
        """

class Pool:
    """A pool of memory that is zeroed when a region is allocated.

    The pool owns memory on huge pages, or on the best pages that the machine has, and allocates
    zeroed regions of it. Memory of deleted regions is cleared in the background. The pool exists
    until its last array and its last region are deleted.

    Args:
        capacity: the size in bytes, rounded up to a multiple of the backing's page.
        backing: "hugetlb 1G", "hugetlb 2M", "thp" or "base": the first backing to try. By default
            "hugetlb 2M". If it is not available, the next backing is used, and ``fallbacks``
            contains the reason.
        strict: raise an error instead of using another backing. By default False.
        populate_on_allocation: populate each region when it is allocated, and each fork when it is
            made. By default all memory is populated now, in parallel, so no region and no fork
            waits for it. Set this if the capacity is only an upper limit.
        threads: the number of threads that populate the pool, and that later clear or populate
            regions. By default as many as are useful.
        scrub_threads: the number of low-priority threads that clear in the background. By default
            1.
        watermarks: ``(low, high)`` in bytes. Clearing in the background starts when fewer than
            ``low`` bytes are clean, and stops when ``high`` bytes are clean. By default all dirty
            memory is cleared.
        clearing: "at allocation" or "at fault": the moment at which dirty memory is cleared. By
            default "at allocation".
        name: the name in /proc/self/maps: ``/memfd:hugekit:NAME``. By default "pool".
        progress: called with the populated bytes; see :func:`clear`.
        broker: the path of the socket of a ``hugekit broker`` that leases the memory, already
            populated. The capacity must be the size of a unit of the broker.
        adopt: the descriptor of a file that another process has made and populated, for example a
            file from ``hugekit lease``. The call always closes the descriptor. You guarantee that
            all bytes of the file are zero, and that no other code writes to it as long as the pool
            or an array of it exists.

    Raises:
        MemoryError: memory or huge pages are short.
        OSError: the kernel has no such pages.
        ValueError: an argument is invalid.

    >>> pool = hugekit.Pool(16 << 20, backing="base")
    >>> array = pool.zeros((1000, 1000))
    >>> array[5, 5] = 1
    >>> pool.stats()["in_use"] * pool.page_size >= array.nbytes
    True
    """
    def __new__(
        cls,
        capacity: int,
        *,
        backing: Backing | None = None,
        strict: bool = False,
        populate_on_allocation: bool = False,
        threads: int | None = None,
        scrub_threads: int = 1,
        watermarks: tuple[int, int] | None = None,
        clearing: Clearing | None = None,
        name: str | None = None,
        progress: Progress | None = None,
        broker: str | PathLike[str] | None = None,
        adopt: int | None = None,
    ) -> Pool: ...
    def region(
        self,
        length: int,
        *,
        threads: int | None = None,
        clearing: Clearing | None = None,
        fault_mode: FaultMode | None = None,
        progress: Progress | None = None,
    ) -> Region:
        """Allocate contiguous zeroed memory of the pool, with the buffer protocol.

        Args:
            length: the length in bytes.
            threads: the number of threads that clear memory that is still dirty. By default the
                pool's number.
            clearing: "at allocation" or "at fault". By default the pool's setting.
            fault_mode: "threaded" or "in place": the mode of fault handling for memory that is
                cleared at its first access. By default threaded if this process may handle faults
                of system calls, otherwise in place.
            progress: called with the cleared or populated bytes; see :func:`clear`.

        Raises:
            MemoryError: the pool has no contiguous free memory of this length.
            PermissionError: memory is to be cleared at its first access, and this process may not
                handle page faults.
            ValueError: the length is 0.
            RuntimeError: this process is a forked child, and the pool belongs to the parent
                process.

        >>> region = hugekit.Pool(1 << 20, backing="base").region(1000)
        >>> bytes(region) == bytes(1000)
        True
        """
    @overload
    def zeros(
        self, shape: _Shape, dtype: None = None, *, order: _Order = "C", threads: int | None = None
    ) -> npt.NDArray[np.float64]:
        """Make a zeroed array on the pool's memory; see :func:`hugekit.zeros`."""
    @overload
    def zeros(
        self, shape: _Shape, dtype: _DType[_D], *, order: _Order = "C", threads: int | None = None
    ) -> npt.NDArray[_D]: ...
    @overload
    def zeros(
        self, shape: _Shape, dtype: npt.DTypeLike, *, order: _Order = "C", threads: int | None = None
    ) -> Array: ...
    @overload
    def empty(
        self, shape: _Shape, dtype: None = None, *, order: _Order = "C", threads: int | None = None
    ) -> npt.NDArray[np.float64]:
        """Make an array on the pool's memory. The array is zeroed, because a pool allocates only
        zeroed memory.
        """
    @overload
    def empty(
        self, shape: _Shape, dtype: _DType[_D], *, order: _Order = "C", threads: int | None = None
    ) -> npt.NDArray[_D]: ...
    @overload
    def empty(
        self, shape: _Shape, dtype: npt.DTypeLike, *, order: _Order = "C", threads: int | None = None
    ) -> Array: ...
    def scrub(self) -> int:
        """Clear all memory that is dirty now. Return the number of cleared bytes."""
    def pause_scrubbing(self) -> None:
        """Stop clearing in the background until :meth:`resume_scrubbing` is called."""
    def resume_scrubbing(self) -> None:
        """Start clearing in the background again."""
    def stats(self) -> dict[str, int]:
        """Return the state of the pool: the numbers of pages of the backing by state (``holes``,
        ``clean``, ``in_use``, ``dirty``), and the bytes of work since the pool was made.
        """
    @property
    def backing(self) -> Backing:
        """The backing of the pool: "hugetlb 1G", "hugetlb 2M", "thp" or "base"."""
    @property
    def fallbacks(self) -> list[tuple[str, str]]:
        """The backings that were tried before, each with the reason why it was not used, as
        ``(backing, reason)``.
        """
    @property
    def capacity(self) -> int:
        """The capacity of the pool in bytes."""
    @property
    def page_size(self) -> int:
        """The page size of the backing in bytes. Every region consists of whole pages."""

class Pin:
    """A range of a region that every fork and snapshot copies at once. :meth:`Region.pin` makes it. A
    pin is a context manager, and keeps the region's memory.
    """
    def __enter__(self) -> Pin: ...
    def __exit__(self, *_error: object) -> None: ...
    def close(self) -> None:
        """End the pin: later forks share the range again. A second call does nothing."""
    @property
    def closed(self) -> bool:
        """True if the pin was closed."""

class Region:
    """Zeroed memory of a pool, with the buffer protocol: ``memoryview(region)``,
    ``numpy.frombuffer(region)``.

    :meth:`Pool.region` makes it. The memory returns to the pool when the region, and all arrays and
    views of it, are deleted. Children of a fork do not inherit the memory: an access to it ends the
    child with SIGSEGV.
    """
    def fork(self, *, granule: int | None = None, fault_mode: FaultMode | None = None) -> Region:
        """Make a region with the same bytes. Neither region sees later writes to the other.

        The call copies nothing. The first write to a granule, in the region or in the fork, copies
        the granule.

        Args:
            granule: the number of bytes that one copy contains, a power of two. By default a page
                of the backing, or 64 KiB on base pages.
            fault_mode: "threaded" or "in place": the mode of fault handling. By default threaded if
                this process may handle faults of system calls, otherwise in place.

        Raises:
            MemoryError: the pool has fewer bytes free than the region has.
            PermissionError: this process may not handle page faults.
            OSError: the memory is on pages of 1 GiB.
        """
    def snapshot(
        self, *, fault_mode: FaultMode | None = None
    ) -> Snapshot[npt.NDArray[np.uint8], View[np.uint8]]:
        """Take a snapshot of the whole region while writers continue; see :func:`hugekit.snapshot`."""
    def release(self, offset: int, length: int) -> None:
        """Discard the bytes of a range. Afterwards the range reads as zeroes. The range must consist
        of whole pages of the backing, or end at the region's end.
        """
    def prepare_write(self, offset: int = 0, length: int | None = None) -> None:
        """Make a range writable without a fault. Call this before a system call writes to the range,
        if faults are handled in place. By default the whole region.
        """
    def pin(self, offset: int = 0, length: int | None = None) -> Pin:
        """Make forks and snapshots copy a range at once, until the :class:`Pin` is closed. By default
        the whole region.

        Pin memory that a device or a running system call accesses by its pages: the region keeps
        these pages.

        Raises:
            ValueError: the range is not in the region.
            MemoryError: bytes that are shared with earlier forks cannot be copied now.

        >>> region = hugekit.Pool(8 << 20, backing="base").region(1 << 20)
        >>> with region.pin(0, 4096):
        ...     fork = region.fork(granule=4096)
        >>> len(region) - region.shared_bytes
        4096
        """
    def populate(
        self,
        offset: int = 0,
        length: int | None = None,
        *,
        threads: int | None = 1,
        progress: Progress | None = None,
    ) -> None:
        """Map all pages of a range now, so that later accesses cause no faults. By default the whole
        region, by one thread. If ``threads`` is None, as many threads as are useful.
        """
    @property
    def address(self) -> int:
        """The address of the first byte."""
    @property
    def mapped_length(self) -> int:
        """The number of mapped bytes: the length rounded up to a multiple of the backing's page."""
    @property
    def pool(self) -> Pool:
        """The pool of the region."""
    @property
    def serving(self) -> FaultMode | None:
        """The mode of fault handling: "threaded" or "in place". None if hugekit handles no faults of
        the region.
        """
    @property
    def shared_bytes(self) -> int:
        """The number of bytes that the region shares with forks at this moment."""
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

class Reserve:
    """Populated memory for the copies that writers make, which one snapshot after another uses.

    Without a reserve, a write to a snapshotted array waits until the kernel has found and cleared
    memory for the copy. If free memory is short or fragmented, this lasts several times as long as
    the copy itself. A program that takes many snapshots should make a reserve when it starts.
    Snapshots that exist at the same time share the reserve. A snapshot may always hold as many
    bytes as its reserve has, whatever ``max_cow_bytes`` is.

    Args:
        nbytes: the length in bytes, rounded up to a multiple of 2 MiB. The call populates them,
            which lasts 0.1 to 0.2 s per GiB. The reserve is large enough if it has as many bytes as
            writers change until a snapshot is read. The size of the arrays is always enough.

    Raises:
        MemoryError: less memory is available.

    >>> weights, reserve = numpy.ones((1024, 1024)), hugekit.Reserve(8 << 20)
    >>> for epoch in range(3):
    ...     with hugekit.snapshot(weights, reserve=reserve) as moment:
    ...         weights += 1
    ...         print(moment.to_numpy().max())
    1.0
    2.0
    3.0
    """
    def __new__(cls, nbytes: int) -> Reserve: ...
    @property
    def nbytes(self) -> int:
        """The length of the reserve in bytes."""

class Snapshot(Generic[_Arrays, _Views]):
    """The content of arrays at one moment, while the program continues to write to them.
    :func:`snapshot` makes it. A snapshot is a context manager; its end lifts the protection of the
    arrays.

    :meth:`to_numpy`, :meth:`write_to`, :meth:`save_npy` and :meth:`savez` read the whole snapshot.
    They release the bytes that they have read, so writers need not copy these bytes aside any more.
    Only one of these methods can be called, and only once.
    """
    def __enter__(self) -> Snapshot[_Arrays, _Views]: ...
    def __exit__(self, *_error: object) -> None: ...
    def close(self) -> None:
        """End the snapshot: the protection of the arrays is lifted. A second call does nothing."""
    @overload
    def to_numpy(self, *, out: None = None, progress: Progress | None = None) -> _Arrays:
        """Return the content of the arrays as new arrays: one array, a list or a dict, in the same
        form as the arrays were passed. Objects that are not arrays are returned as bytes of dtype
        uint8. The call ends the snapshot.

        Args:
            out: arrays to read into, instead of new arrays, in the same form and with the same
                numbers of bytes. The call returns them.
            progress: see :func:`clear`.

        Raises:
            SnapshotLost: writers changed more than the snapshot may hold, or the memory was
                unmapped or replaced. The bytes that were read into ``out`` are a prefix of the
                snapshot.
            ValueError: the snapshot has ended. Or ``out`` does not match; the snapshot has not
                ended then.
        """
    @overload
    def to_numpy(self, *, out: _Out, progress: Progress | None = None) -> _Out: ...
    def view(self) -> _Views:
        """Return a :class:`View` of the content of each array: one view, a list or a dict, in the same
        form as the arrays were passed. The call copies no byte.

        The snapshot does not end, and can still be read as a whole. The protection of its arrays is
        lifted when its views are deleted, too.

        Raises:
            ValueError: the snapshot has ended.
            MemoryError: the process has no addresses for the view.

        >>> table = numpy.arange(1_000_000)
        >>> with hugekit.snapshot(table) as moment:
        ...     table[:] = 0
        ...     view = moment.view()
        ...     int(view[500_000]), view[10:13].tolist()
        (500000, [10, 11, 12])
        """
    def prepare_write(self, array: _Memory | None = None) -> None:
        """Make arrays writable without a wait, also for system calls such as ``readinto``. The bytes
        of the arrays are copied aside first.

        Args:
            array: one of the arrays, or a contiguous view of an array. By default all arrays.

        Raises:
            SnapshotLost: writers changed more than the snapshot may hold, or the memory was
                unmapped or replaced.
            ValueError: the snapshot has ended.
        """
    def write_to(self, file: _File, *, progress: Progress | None = None) -> None:
        """Write the bytes of all arrays in order to a file, without gaps and without a header. The
        call ends the snapshot.

        Args:
            file: an object with a method ``write`` that accepts bytes. If ``write`` returns a
                number, further calls write the rest. A plain file, such as ``open(path, "wb")``
                returns, is written without the GIL.
            progress: see :func:`clear`.

        Raises:
            SnapshotLost: writers changed more than the snapshot may hold, or the memory was
                unmapped or replaced. The bytes that were written are a prefix of the snapshot.
            BlockingIOError: the file does not block, and accepts no more bytes now. The attribute
                ``characters_written`` is the number of bytes of the snapshot that were written.
            OSError: the file's ``write`` accepted no byte.
            ValueError: the snapshot has ended, or ``write`` returned a larger number than the bytes
                that were passed to it.
            TypeError: ``write`` returned no number.
            Exceptions: those of the file's ``write``.
        """
    def save_npy(
        self, path: str | PathLike[str], *, fsync: bool = False, progress: Progress | None = None
    ) -> None:
        """Save one array to the same file, byte for byte, as ``numpy.save``. The call ends the
        snapshot.

        The file gets its name when it is complete, and replaces an existing one.

        Args:
            path: the path of the file. As with numpy, ``.npy`` is appended if it is missing.
            fsync: wait until the file is on its device. By default False.
            progress: see :func:`clear`.

        Raises:
            SnapshotLost: writers changed more than the snapshot may hold, or the memory was
                unmapped or replaced. There is no file then.
            ValueError: the snapshot has ended, or has several arrays.
            OSError: the file cannot be written.
        """
    def savez(
        self, path: str | PathLike[str], *, fsync: bool = False, progress: Progress | None = None
    ) -> None:
        """Save all arrays as ``numpy.savez`` does. Arrays of a dict have its names; other arrays are
        named ``arr_0``, ``arr_1`` and so on. The call ends the snapshot.

        The file gets its name when it is complete, and replaces an existing one.

        Args:
            path: the path of the file. As with numpy, ``.npz`` is appended if it is missing.
            fsync: wait until the file is on its device. By default False.
            progress: see :func:`clear`.

        Raises:
            SnapshotLost, ValueError, OSError: see :meth:`save_npy`.
        """
    def stats(self) -> dict[str, float]:
        """Return the costs of the snapshot: ``copied_by_writers`` and ``copied_by_others`` in
        granules; ``retained``, ``most_retained``, ``cap`` and ``reserved`` (the part of ``cap``
        that was allocated in advance) in bytes; ``longest_fault``, the longest wait of a writer, in
        seconds. After the end of the snapshot, these are the costs until the end.
        """
    @property
    def nbytes(self) -> int:
        """The number of bytes of all arrays."""
    @property
    def serving(self) -> Serving | None:
        """The mode in which faults of writers are handled: "threaded" or "in place". "copied" if no
        array could be protected. None if no array is long enough to be protected.
        """
    @property
    def copied_bytes(self) -> int:
        """The number of bytes that were copied at once, because they cannot be protected."""
    @property
    def copied(self) -> dict[str, str]:
        """The names of the arrays that were copied at once, with the reasons. Arrays without a name
        are ``arr_0``, ``arr_1`` and so on.
        """
    @property
    def closed(self) -> bool:
        """True if the snapshot has ended."""

class View(Generic[_D]):
    """A read-only array of a snapshot. Bytes are copied when they are first requested.
    :meth:`Snapshot.view` makes it.

    An index that is a number or a slice returns the same as in numpy, and reads only the bytes
    between the first and the last byte of the result. ``numpy.asarray(view)`` reads everything.
    Bytes that were read never change. They use memory until the view and the arrays made of it are
    deleted.

    Raises:
        SnapshotLost: bytes that were not read before are read, and the snapshot is lost.
        TypeError: an index is not a number, a slice or the name of a field.
    """
    def rebase(self, address: int, nbytes: int) -> memoryview:
        """Return ``nbytes`` bytes at an address in the array, read-only. This is for structures that
        hold pointers into the array itself.

        Raises:
            ValueError: the address is outside the array.
            SnapshotLost: the snapshot is lost.

        >>> text = numpy.frombuffer(bytearray(b"what it was"), "u1")
        >>> pointer = text.ctypes.data + 5
        >>> with hugekit.snapshot(text) as moment:
        ...     bytes(moment.view().rebase(pointer, 6))
        b'it was'
        """
    def __getitem__(self, index: _Index, /) -> Any: ...
    @overload
    def __array__(self, dtype: None = None, copy: bool | None = None) -> npt.NDArray[_D]: ...
    @overload
    def __array__(self, dtype: npt.DTypeLike, copy: bool | None = None) -> Array: ...
    def __len__(self) -> int: ...
    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array."""
    @property
    def dtype(self) -> np.dtype[_D]:
        """The dtype of the array."""
    @property
    def nbytes(self) -> int:
        """The number of bytes of the array, read or not."""

def clear(array: _Memory, *, threads: int | None = None, progress: Progress | None = None) -> None:
    """Set every byte of an array, or of another writable buffer, to zero.

    Args:
        array: an array or a buffer, contiguous in C or Fortran order, without Python objects.
        threads: the number of threads, the calling thread included. By default as many as are
            useful.
        progress: a function that is called as ``progress(done, total)`` in bytes, or a progress bar
            with a method ``update``, such as tqdm's. An exception in the call ends the work. The
            attribute ``hugekit_done`` of the exception then lists the bytes that are done, as pairs
            of offsets.

    Raises:
        ValueError: the array is not contiguous, or read-only (BufferError for some objects), or
            ``threads`` is 0.
        TypeError: the object has no buffer, or holds Python objects.

    >>> array = numpy.ones((1000, 1000))
    >>> hugekit.clear(array)
    >>> bool(array.any())
    False
    """
def copy(
    dst: _Memory, src: _Memory, *, threads: int | None = None, progress: Progress | None = None
) -> None:
    """Copy the bytes of one array, or of another buffer, to another.

    ``dst`` and ``src`` must have the same number of bytes. Arrays must also have the same shape,
    dtype and order.

    Args:
        dst: the destination, writable and contiguous.
        src: the source, contiguous. The source must not overlap ``dst``.
        threads: the number of threads, the calling thread included. By default as many as are
            useful.
        progress: a function that is called as ``progress(done, total)`` in bytes, or a progress bar
            with a method ``update``, such as tqdm's. An exception in the call ends the work. The
            attribute ``hugekit_done`` of the exception then lists the bytes that are done, as pairs
            of offsets.

    Raises:
        ValueError: lengths, shapes, dtypes or orders differ, source and destination overlap, or an
            object is not contiguous.
        TypeError: an object has no buffer, or holds Python objects.

    >>> source = numpy.arange(1_000_000)
    >>> copy = hugekit.empty_like(source)
    >>> hugekit.copy(copy, source, threads=2)
    >>> bool((copy == source).all())
    True
    """
def set_learning(enabled: bool) -> None:
    """Switch learning on or off: clears and copies find the fastest routine by timing their own work.
    By default on.

    A program that needs the same routine every time switches learning off. Timings are then kept
    but not used.

    Args:
        enabled: True to learn, for later operations of this process.

    >>> hugekit.set_learning(False)
    >>> hugekit.set_learning(True)
    """
@overload
def zeros(
    shape: _Shape,
    dtype: None = None,
    *,
    order: _Order = "C",
    pool: Pool | None = None,
    threads: int | None = None,
    shared: bool = False,
) -> npt.NDArray[np.float64]:
    """Make a zeroed array on huge pages, or on the best pages that the machine has.

    The memory comes from a pool, which has cleared it before. ``numpy.zeros`` clears page by page
    at the first access. The memory returns to the pool when the array and all views of it are
    deleted.

    Args:
        shape: a number, or a tuple of numbers.
        dtype: any dtype without Python objects. By default float64.
        order: "C" or "F".
        pool: the pool for the array. By default process-wide pools, which grow.
        threads: the number of threads that clear memory that is still dirty. By default the pool's
            number.
        shared: share the array with processes that this process forks afterwards, such as the
            workers of a DataLoader. Each process sees the writes of the others, as after torch's
            ``share_memory_()``. The memory is then separate from any pool, populated at once, and
            freed when the last process has deleted it. :func:`fork` and snapshots do not support
            such memory. By default False.

    Raises:
        MemoryError: less memory is available.
        ValueError: a negative shape, more bytes than the process has addresses for, an unknown
            order, or a pool for shared memory.
        TypeError: a dtype that holds Python objects.

    Children of a fork do not inherit the memory unless it is ``shared``: an access to it ends the
    child with SIGSEGV (see the package's documentation).

    >>> array = hugekit.zeros((1000, 1000), "f4")
    >>> array.shape, array.dtype.name, float(array.sum())
    ((1000, 1000), 'float32', 0.0)
    """
@overload
def zeros(
    shape: _Shape,
    dtype: _DType[_D],
    *,
    order: _Order = "C",
    pool: Pool | None = None,
    threads: int | None = None,
    shared: bool = False,
) -> npt.NDArray[_D]: ...
@overload
def zeros(
    shape: _Shape,
    dtype: npt.DTypeLike,
    *,
    order: _Order = "C",
    pool: Pool | None = None,
    threads: int | None = None,
    shared: bool = False,
) -> Array: ...
@overload
def empty(
    shape: _Shape,
    dtype: None = None,
    *,
    order: _Order = "C",
    pool: Pool | None = None,
    threads: int | None = None,
    shared: bool = False,
) -> npt.NDArray[np.float64]:
    """Make an array on huge pages. The array is zeroed, as by :func:`zeros`, because a pool allocates
    only zeroed memory.

    >>> bool(hugekit.empty(1000).any())
    False
    """
@overload
def empty(
    shape: _Shape,
    dtype: _DType[_D],
    *,
    order: _Order = "C",
    pool: Pool | None = None,
    threads: int | None = None,
    shared: bool = False,
) -> npt.NDArray[_D]: ...
@overload
def empty(
    shape: _Shape,
    dtype: npt.DTypeLike,
    *,
    order: _Order = "C",
    pool: Pool | None = None,
    threads: int | None = None,
    shared: bool = False,
) -> Array: ...
@overload
def zeros_like(
    array: npt.NDArray[_D],
    dtype: None = None,
    *,
    pool: Pool | None = None,
    threads: int | None = None,
    shared: bool = False,
) -> npt.NDArray[_D]:
    """Make a zeroed array on huge pages, with the shape, dtype and order of another array; see :func:`zeros`.

    >>> hugekit.zeros_like(numpy.ones((2, 3), "f4")).shape
    (2, 3)
    """
@overload
def zeros_like(
    array: npt.ArrayLike,
    dtype: _DType[_D],
    *,
    pool: Pool | None = None,
    threads: int | None = None,
    shared: bool = False,
) -> npt.NDArray[_D]: ...
@overload
def zeros_like(
    array: npt.ArrayLike,
    dtype: npt.DTypeLike = None,
    *,
    pool: Pool | None = None,
    threads: int | None = None,
    shared: bool = False,
) -> Array: ...
@overload
def empty_like(
    array: npt.NDArray[_D],
    dtype: None = None,
    *,
    pool: Pool | None = None,
    threads: int | None = None,
    shared: bool = False,
) -> npt.NDArray[_D]:
    """Make an array as :func:`zeros_like` does. The array is zeroed, because a pool allocates only zeroed memory.

    >>> hugekit.empty_like(numpy.ones((2, 3), "f4")).dtype.name
    'float32'
    """
@overload
def empty_like(
    array: npt.ArrayLike,
    dtype: _DType[_D],
    *,
    pool: Pool | None = None,
    threads: int | None = None,
    shared: bool = False,
) -> npt.NDArray[_D]: ...
@overload
def empty_like(
    array: npt.ArrayLike,
    dtype: npt.DTypeLike = None,
    *,
    pool: Pool | None = None,
    threads: int | None = None,
    shared: bool = False,
) -> Array: ...
def fork(array: npt.NDArray[_D]) -> npt.NDArray[_D]:
    """Make an array with the same elements. Neither array sees later writes to the other.

    The array must be made by :func:`zeros` or :func:`empty`, or on a :class:`Region`, or be a
    contiguous view of such an array. The whole region is forked, so the pool must have as many free
    bytes.

    Raises:
        MemoryError: the pool has fewer free bytes than the region.
        PermissionError: this process may not handle page faults.
        ValueError: the array is not on a region, or not contiguous.
        TypeError: the object is not a numpy array. For a tensor, fork ``tensor.numpy()``.

    >>> pool = hugekit.Pool(8 << 20, backing="base")
    >>> template = pool.zeros(100_000)
    >>> clone = hugekit.fork(template)
    >>> clone[0] = 1
    >>> float(template[0]), float(clone[0])
    (0.0, 1.0)
    """
def checkpoint_vm(
    api: _Path,
    output: _Path,
    *,
    previous: Sequence[_Path] = [],
    collapse: bool = True,
    pid: int | None = None,
    proxy: bool = False,
) -> dict[str, Any]:
    """Save a running VM of stock Firecracker. The VM is paused for some milliseconds, and its memory
    is copied while it runs. ``hugekit pager`` must have restored the VM and have left it.

    Args:
        api: the path of the socket of Firecracker's API.
        output: the folder to make, with the files ``vmstate`` and ``memory``. After the call it is
            complete or absent. Ctrl-C has an effect only when it is complete.
        previous: folders of earlier checkpoints of the VM: a full checkpoint, and then each delta
            since. ``output`` then has the file ``memory.delta`` instead of ``memory``.
        collapse: put memory on huge pages before the pause, because the pause is longer on base
            pages. By default True.
        pid: the number of the process of Firecracker. By default the process that listens at the
            socket. Any other process is refused, unless the socket belongs to a ``proxy``.

    Returns:
        The output of ``hugekit checkpoint --json -``, such as ``paused_ms``, ``complete_ms`` and
            ``copied_bytes``.

    Raises:
        ValueError: the output exists, or the VM has no userfaultfd.
        OSError: a pager or another checkpoint uses the VM (EBUSY), Firecracker does not answer, or
            the output cannot be written. The VM continues to run.

    >>> try:
    ...     report = hugekit.checkpoint_vm("no.sock", "saved")
    ... except OSError as error:
    ...     print(error.strerror)
    the VMM did not answer to "connect to no.sock": No such file or directory (os error 2)
    """
def fork_vm(
    api: _Path,
    children: Sequence[Mapping[str, Any]],
    *,
    resume: bool = True,
    collapse: bool = True,
    pid: int | None = None,
    proxy: bool = False,
) -> dict[str, Any]:
    """Start children from a running VM of stock Firecracker, without a file. The VM is paused for some
    milliseconds, and the children run from that moment. The VM must meet the conditions of
    :func:`checkpoint_vm`. Complete children run independently of this process, and can be saved and
    forked.

    Args:
        api: the path of the socket of Firecracker's API.
        children: from 1 to 64 dicts. ``command`` is the command that starts Firecracker, as a list.
            ``api`` is the path of the child's API, which the command must contain, too. ``net`` is
            a dict with the tap of each network device. ``vsock`` is the path of the child's socket.
            ``disks`` is a dict with the new file for each disk that the VM writes; the disk is
            copied during the pause. The dict ``load`` adds fields to the request that restores the
            child, such as ``huge_pages``. The standard streams of the command are ``/dev/null``.
        resume: let the children run. By default True.
        collapse, pid, proxy: as for :func:`checkpoint_vm`.

    Returns:
        The output of ``hugekit fork --json -``, and for each child ``program``: the number of the
            process of its command. It is a child of this process: wait for its end by
            :func:`os.waitpid`.

    Raises:
        ValueError: the number of children is wrong, the socket of a child exists, or two VMs would
            use the same tap, socket or disk.
        OSError: as for :func:`checkpoint_vm`, or a child cannot be started or restored. All
            children have ended then, and the VM continues to run.

    >>> try:
    ...     hugekit.fork_vm("no.sock", [])
    ... except ValueError as error:
    ...     print(error)
    0 children: from 1 to 64 can be forked at once
    """
def pack_vm(
    state: _Path,
    memory: _Path,
    output: _Path,
    *,
    deltas: Sequence[_Path] = [],
    working_set: _Path | None = None,
    tag: str | None = None,
) -> dict[str, Any]:
    """Pack a saved VM as an OCI image layout, which skopeo and oras copy to any registry. The same
    files make the same layout.

    Args:
        state: the file with the state of the VM's devices, such as ``vmstate`` of a checkpoint.
        memory: the file with the VM's memory, such as ``memory`` of a checkpoint.
        output: the folder to make. It is complete or absent. Ctrl-C has an effect when it is
            complete.
        deltas: folders of later checkpoints, the oldest first, each with ``vmstate`` and
            ``memory.delta``.
        working_set: the file with the memory that the VM touches first, as ``hugekit pager`` has
            recorded it. By default the file beside ``memory``, if it is of this memory.
        tag: the tag of the image in the layout.

    Returns:
        The output of ``hugekit image pack --json``, such as ``digest``, ``data_bytes`` and
            ``total_bytes``.

    Raises:
        ValueError: the output exists, or a delta does not follow on the memory before it.
        OSError: a file cannot be read, is written meanwhile, or the output cannot be written.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     state, memory = folder + "/vmstate", folder + "/memory"
    ...     with open(state, "wb") as file:
    ...         file.write(b"the devices")
    ...     with open(memory, "wb") as file:
    ...         file.write(bytes(1 << 20) + b"x" * 4096)
    ...     packed = hugekit.pack_vm(state, memory, folder + "/layout")
    ...     back = hugekit.unpack_vm(folder + "/layout", folder + "/back")
    ...     with open(back["memory"][0], "rb") as file:
    ...         file.read() == bytes(1 << 20) + b"x" * 4096
    11
    1052672
    True
    >>> packed["memory_bytes"], packed["data_bytes"], back["written_bytes"]
    (1052672, 4096, 4096)
    """
def unpack_vm(layout: _Path, output: _Path, *, keep_deltas: bool = False) -> dict[str, Any]:
    """Unpack a VM from an OCI image layout, into the folder of a checkpoint: ``vmstate`` and
    ``memory``. All digests and hashes are compared. Zeroes of the memory are holes.

    Args:
        layout: the folder of the layout; of a layout with several images, ``LAYOUT:TAG``.
        output: the folder to make. It is complete or absent. Ctrl-C has an effect when it is
            complete.
        keep_deltas: leave deltas as files, in the folders ``000001``, ``000002`` and so on, instead
            of applying them.

    Returns:
        The output of ``hugekit image unpack --json``: the paths ``state`` and ``memory``, a list of
            the memory file and its deltas, ``memory_bytes`` and ``written_bytes``.

    Raises:
        ValueError: the output exists, or something in the layout contradicts its digest or hash.
        OSError: the layout cannot be read, or the output cannot be written.
        MemoryError: the file system has no room for the memory.

    >>> try:
    ...     hugekit.unpack_vm("no-layout", "saved")
    ... except OSError as error:
    ...     print(error.strerror)
    no-layout of the layout cannot be read: No such file or directory (os error 2)
    """
def warm(
    path: _Path,
    *,
    check: bool = False,
    fill_holes: bool = False,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Put the page cache of a file on huge pages. Every process that maps the file afterwards gets one
    page fault for each 2 MiB, without a change of the process: ``numpy.memmap``, ``mmap``, a loader
    of model weights. Parts of the file that are not huge yet are dropped from the cache and read
    again. The file needs as much memory as it has data. Ctrl-C ends the call after at most 64 MiB.

    Args:
        path: a regular file of at least 2 MiB that this user may read.
        check: only count huge units. The file is not read, and nothing changes. By default False.
        fill_holes: fill holes of the file with memory, too. By default 2 MiB without data are
            skipped.
        progress: called with the bytes that were read again; see :func:`clear`.

    Returns:
        The output of ``hugekit warm --json``: ``bytes``; the numbers of ``units`` of 2 MiB, of
            ``huge``, ``already_huge`` and ``made_huge`` units, and of ``holes``; ``seconds``; and
            ``left``: None, or the number of the other units and the reason.

    Raises:
        OSError: the file cannot be read, or was truncated or replaced during the call (EBUSY).
        PermissionError: the call checks a file of another user.
        ValueError: the file is not regular, is shorter than 2 MiB, or consists of one hole.
        MemoryError: the machine or a control group has less memory than the file. Nothing was
            dropped.

    >>> with tempfile.NamedTemporaryFile() as file:
    ...     file.write(bytes(8 << 20))
    ...     file.flush()
    ...     report = hugekit.warm(file.name)
    8388608
    >>> report["units"], report["huge"] == 4 or report["left"]["why"]["reason"] != "not_made"
    (4, True)
    """
def region_of(array: Array) -> tuple[Region, int]:
    """Return the region of an array, and the array's offset in it, in bytes.

    Raises:
        ValueError: the array is not on a region.

    >>> region, offset = hugekit.region_of(hugekit.zeros(1000)[10:])
    >>> len(region), offset
    (8000, 80)
    """
@overload
def snapshot(
    arrays: npt.NDArray[_D],
    *,
    fault_mode: FaultMode | None = None,
    granule: Literal["huge", "small"] | None = None,
    max_cow_bytes: int | None = None,
    populate_copies: int | None = None,
    reserve: Reserve | None = None,
    strict: bool = False,
) -> Snapshot[npt.NDArray[_D], View[_D]]:
    """Take a snapshot of arrays: later writes to the arrays do not change it.

    The call write-protects the arrays. For 1 GiB this lasts 0.4 to 2 ms on huge pages, and 12 to 27
    ms on base pages. After that, the first write to each 2 MiB (64 KiB on base pages) copies these
    bytes aside, unless they were read already.

    For all Python code, all arrays are of one moment. Stores of threads that do not hold the GIL
    during the call may be in the snapshot or not.

    Args:
        arrays: an array, or a list, tuple or dict of arrays without Python objects. Any object with
            a buffer may replace an array, and so may a torch tensor on the CPU, such as those of
            ``model.state_dict()``. A tensor is returned as an array; dtypes that numpy lacks become
            unsigned integers. Arrays that are neither in C nor in Fortran order are copied at once
            and returned in C order.
        fault_mode: "threaded" or "in place": the mode of fault handling for writers. In place, the
            writing thread copies, in a handler of SIGBUS. A system call that writes to an array,
            such as ``file.readinto(array)``, then stops early or fails with EFAULT until that part
            was read. By default threaded. If this process may not handle faults of system calls,
            everything is copied at once, the logger ``hugekit`` reports the reason, and
            ``Snapshot.serving`` is "copied".
        granule: "huge" (2 MiB) or "small" (64 KiB): the bytes that one write copies. By default
            "huge" if some of the memory is on huge pages.
        max_cow_bytes: the highest number of bytes of copies of each array at a time. By default the
            length of the array, so writers never need more. If less memory is available, on the
            machine or in the control group, all arrays share the available memory. If the process
            may map less (``ulimit -v``), the limit is half of that. If writers need more, the
            writers continue, and the snapshot is lost. The limit is never lower than the length of
            a reserve. Arrays on a pool always have all of their bytes, reserved in the pool.
        populate_copies: bytes for copies that are populated now, so that no write waits for this
            memory. This lasts 0.1 to 0.2 s per GiB. By default 0.
        reserve: a :class:`Reserve`, whose memory the copies use first.
        strict: refuse arrays that cannot be protected, instead of copying them at once. These are
            arrays that are shared, map a file, or may be merged by the kernel (KSM), and arrays
            that are neither in C nor in Fortran order. Without ``strict``, ``Snapshot.copied``
            contains their names. By default False.

    Raises:
        PermissionError: this process may not handle page faults.
        OSError: with ``strict``, the memory cannot be protected. Or Linux is older than 5.14.
        MemoryError: the pool of an array has fewer free bytes than the array's region has, or
            memory is short for the bytes that are copied at once.
        ValueError: with ``strict``, an array is not contiguous.
        TypeError: an array holds Python objects, or has more than its bytes, such as a masked
            array.

    >>> weights = numpy.ones((512, 1024))
    >>> with hugekit.snapshot(weights) as moment:
    ...     weights *= 2
    ...     saved = moment.to_numpy()
    >>> float(saved.max()), float(weights.max())
    (1.0, 2.0)
    """
@overload
def snapshot(
    arrays: _Tensor,
    *,
    fault_mode: FaultMode | None = None,
    granule: Literal["huge", "small"] | None = None,
    max_cow_bytes: int | None = None,
    populate_copies: int | None = None,
    reserve: Reserve | None = None,
    strict: bool = False,
) -> Snapshot[Array, View[Any]]: ...
@overload
def snapshot(
    arrays: Buffer,
    *,
    fault_mode: FaultMode | None = None,
    granule: Literal["huge", "small"] | None = None,
    max_cow_bytes: int | None = None,
    populate_copies: int | None = None,
    reserve: Reserve | None = None,
    strict: bool = False,
) -> Snapshot[npt.NDArray[np.uint8], View[np.uint8]]: ...
@overload
def snapshot(
    arrays: Mapping[str, npt.NDArray[_D]],
    *,
    fault_mode: FaultMode | None = None,
    granule: Literal["huge", "small"] | None = None,
    max_cow_bytes: int | None = None,
    populate_copies: int | None = None,
    reserve: Reserve | None = None,
    strict: bool = False,
) -> Snapshot[dict[str, npt.NDArray[_D]], dict[str, View[_D]]]: ...
@overload
def snapshot(
    arrays: Mapping[str, _Memory],
    *,
    fault_mode: FaultMode | None = None,
    granule: Literal["huge", "small"] | None = None,
    max_cow_bytes: int | None = None,
    populate_copies: int | None = None,
    reserve: Reserve | None = None,
    strict: bool = False,
) -> Snapshot[dict[str, Array], dict[str, View[Any]]]: ...
@overload
def snapshot(
    arrays: Sequence[npt.NDArray[_D]],
    *,
    fault_mode: FaultMode | None = None,
    granule: Literal["huge", "small"] | None = None,
    max_cow_bytes: int | None = None,
    populate_copies: int | None = None,
    reserve: Reserve | None = None,
    strict: bool = False,
) -> Snapshot[list[npt.NDArray[_D]], list[View[_D]]]: ...
@overload
def snapshot(
    arrays: Sequence[_Memory],
    *,
    fault_mode: FaultMode | None = None,
    granule: Literal["huge", "small"] | None = None,
    max_cow_bytes: int | None = None,
    populate_copies: int | None = None,
    reserve: Reserve | None = None,
    strict: bool = False,
) -> Snapshot[list[Array], list[View[Any]]]: ...
def default_pools() -> list[Pool]:
    """Return the process-wide pools, which arrays without a pool of their own use. These pools are
    made when they are needed, and populated on allocation.

    >>> array = hugekit.zeros(1000)
    >>> len(hugekit.default_pools()) >= 1
    True
    """
def trim() -> int:
    """Return memory of process-wide pools to the kernel, if no array uses it. Return the number of
    bytes.

    >>> hugekit.trim() >= 0
    True
    """
def doctor() -> _Report:
    """Return the properties of this machine for huge-page memory, with a remedy for each limit.

    Returns:
        The output of ``hugekit doctor --json``: ``machine``, and ``lines`` with ``topic``,
            ``name``, ``value``, ``verdict`` ("ok", "note", "limited", "missing", "unknown") and
            ``remedy``.

    Raises:
        OSError: neither /proc nor /sys can be read.

    >>> report = hugekit.doctor()
    >>> report["machine"]["memory_bytes"] > 0
    True
    >>> sorted(report["lines"][0])
    ['name', 'remedy', 'topic', 'value', 'verdict']
    """
