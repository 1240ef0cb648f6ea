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

class SnapshotLost(OSError): ...

_Path = str | PathLike[str]

class Saved:
    def __init__(
        self,
        path: str,
        is_full: bool,
        reason: str | None,
        changed: int,
        written: int,
        state: str,
        paused: float,
        seconds: float,
    ) -> None: ...
    @property
    def path(self) -> str: ...
    @property
    def is_full(self) -> bool: ...
    @property
    def reason(self) -> str | None: ...
    @property
    def changed(self) -> int: ...
    @property
    def written(self) -> int: ...
    @property
    def state(self) -> str: ...
    @property
    def paused(self) -> float: ...
    @property
    def seconds(self) -> float: ...

class Saving:
    def wait(self, timeout: float | None = None) -> Saved: ...
    def done(self) -> bool: ...

class Checkpointer:
    def __init__(
        self,
        arrays: Any,
        *,
        reserve: Reserve | None = None,
        fault_mode: FaultMode | None = None,
        granule: Literal["huge", "small"] | None = None,
        max_cow_bytes: int | None = None,
    ) -> None: ...
    @overload
    def save(
        self, path: _Path, *, full: bool = False, wait: Literal[True] = True, fsync: bool = True
    ) -> Saved: ...
    @overload
    def save(
        self, path: _Path, *, full: bool = False, wait: Literal[False], fsync: bool = True
    ) -> Saving: ...
    @overload
    def save(
        self, path: _Path, *, full: bool = False, wait: bool = True, fsync: bool = True
    ) -> Saved | Saving: ...
    def restore(self, paths: _Path | Sequence[_Path]) -> Any: ...
    def prepare_write(self, array: Any) -> None: ...
    @property
    def serving(self) -> FaultMode | None: ...
    def close(self) -> None: ...
    def __enter__(self) -> Checkpointer: ...
    def __exit__(self, *_error: object) -> None: ...

def restore(paths: _Path | Sequence[_Path], arrays: Any) -> Any: ...
def load_checkpoint(paths: _Path | Sequence[_Path], *, as_numpy: bool = False) -> Any: ...

class Tender:
    def __new__(
        cls,
        pid: int | None = None,
        *,
        density: float = 0.9,
        cpu_share: float = 0.2,
        bytes_per_second: int = 1073741824,
        keep_free: int = 268435456,
    ) -> Tender: ...
    @property
    def pid(self) -> int: ...
    def collapse(self) -> dict[str, Any]: ...
    @property
    def status(self) -> dict[str, Any] | None: ...
    def __enter__(self) -> Tender: ...
    def __exit__(self, *exception: object) -> None: ...

class Pool:
    def __new__(
        cls,
        capacity: int,
        *,
        backing: Backing | None = None,
        strict: bool = False,
        populate: bool = False,
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
    ) -> Region: ...
    @overload
    def zeros(
        self, shape: _Shape, dtype: None = None, *, order: _Order = "C", threads: int | None = None
    ) -> npt.NDArray[np.float64]: ...
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
    ) -> npt.NDArray[np.float64]: ...
    @overload
    def empty(
        self, shape: _Shape, dtype: _DType[_D], *, order: _Order = "C", threads: int | None = None
    ) -> npt.NDArray[_D]: ...
    @overload
    def empty(
        self, shape: _Shape, dtype: npt.DTypeLike, *, order: _Order = "C", threads: int | None = None
    ) -> Array: ...
    def scrub(self) -> int: ...
    def pause_scrubbing(self) -> None: ...
    def resume_scrubbing(self) -> None: ...
    def stats(self) -> dict[str, int]: ...
    @property
    def backing(self) -> Backing: ...
    @property
    def fallbacks(self) -> list[tuple[str, str]]: ...
    @property
    def capacity(self) -> int: ...
    @property
    def page_size(self) -> int: ...

class Pin:
    def __enter__(self) -> Pin: ...
    def __exit__(self, *_error: object) -> None: ...
    def close(self) -> None: ...
    @property
    def closed(self) -> bool: ...

class Region:
    def fork(self, *, granule: int | None = None, fault_mode: FaultMode | None = None) -> Region: ...
    def snapshot(
        self, *, fault_mode: FaultMode | None = None
    ) -> Snapshot[npt.NDArray[np.uint8], View[np.uint8]]: ...
    def release(self, offset: int, length: int) -> None: ...
    def prepare_write(self, offset: int = 0, length: int | None = None) -> None: ...
    def pin(self, offset: int = 0, length: int | None = None) -> Pin: ...
    def populate(
        self,
        offset: int = 0,
        length: int | None = None,
        *,
        threads: int = 1,
        progress: Progress | None = None,
    ) -> None: ...
    @property
    def address(self) -> int: ...
    @property
    def mapped_length(self) -> int: ...
    @property
    def pool(self) -> Pool: ...
    @property
    def serving(self) -> FaultMode | None: ...
    @property
    def shared_bytes(self) -> int: ...
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

class Reserve:
    def __new__(cls, nbytes: int) -> Reserve: ...
    @property
    def nbytes(self) -> int: ...

class Snapshot(Generic[_Arrays, _Views]):
    def __enter__(self) -> Snapshot[_Arrays, _Views]: ...
    def __exit__(self, *_error: object) -> None: ...
    def close(self) -> None: ...
    @overload
    def to_numpy(self, *, out: None = None, progress: Progress | None = None) -> _Arrays: ...
    @overload
    def to_numpy(self, *, out: _Out, progress: Progress | None = None) -> _Out: ...
    def view(self) -> _Views: ...
    def prepare_write(self, array: _Memory | None = None) -> None: ...
    def write_to(self, file: _File, *, progress: Progress | None = None) -> None: ...
    def save_npy(
        self, path: str | PathLike[str], *, fsync: bool = False, progress: Progress | None = None
    ) -> None: ...
    def savez(
        self, path: str | PathLike[str], *, fsync: bool = False, progress: Progress | None = None
    ) -> None: ...
    def stats(self) -> dict[str, float]: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def serving(self) -> FaultMode | None: ...
    @property
    def closed(self) -> bool: ...

class View(Generic[_D]):
    def rebase(self, address: int, nbytes: int) -> memoryview: ...
    def __getitem__(self, index: _Index, /) -> Any: ...
    @overload
    def __array__(self, dtype: None = None, copy: bool | None = None) -> npt.NDArray[_D]: ...
    @overload
    def __array__(self, dtype: npt.DTypeLike, copy: bool | None = None) -> Array: ...
    def __len__(self) -> int: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> np.dtype[_D]: ...
    @property
    def nbytes(self) -> int: ...

def clear(array: _Memory, *, threads: int | None = None, progress: Progress | None = None) -> None: ...
def copy(
    dst: _Memory, src: _Memory, *, threads: int | None = None, progress: Progress | None = None
) -> None: ...
def set_learning(enabled: bool) -> None: ...
@overload
def zeros(
    shape: _Shape,
    dtype: None = None,
    *,
    order: _Order = "C",
    pool: Pool | None = None,
    threads: int | None = None,
    shared: bool = False,
) -> npt.NDArray[np.float64]: ...
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
) -> npt.NDArray[np.float64]: ...
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
) -> npt.NDArray[_D]: ...
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
) -> npt.NDArray[_D]: ...
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
def fork(array: npt.NDArray[_D]) -> npt.NDArray[_D]: ...
def region_of(array: Array) -> tuple[Region, int]: ...
@overload
def snapshot(
    arrays: npt.NDArray[_D],
    *,
    fault_mode: FaultMode | None = None,
    granule: Literal["huge", "small"] | None = None,
    max_cow_bytes: int | None = None,
    populate_copies: int | None = None,
    reserve: Reserve | None = None,
) -> Snapshot[npt.NDArray[_D], View[_D]]: ...
@overload
def snapshot(
    arrays: _Tensor,
    *,
    fault_mode: FaultMode | None = None,
    granule: Literal["huge", "small"] | None = None,
    max_cow_bytes: int | None = None,
    populate_copies: int | None = None,
    reserve: Reserve | None = None,
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
) -> Snapshot[list[Array], list[View[Any]]]: ...
def default_pools() -> list[Pool]: ...
def trim() -> int: ...
def doctor() -> _Report: ...
