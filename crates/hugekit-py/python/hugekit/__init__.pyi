from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import Any, Literal, Protocol, TypedDict

import numpy.typing as npt
from typing_extensions import Buffer

__version__: str

Array = npt.NDArray[Any]
Backing = Literal["hugetlb 1G", "hugetlb 2M", "thp", "base"]
Clearing = Literal["at hand-out", "at fault"]
Handling = Literal["threaded", "in place"]

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
    ) -> Pool: ...
    def region(
        self,
        length: int,
        *,
        threads: int | None = None,
        clearing: Clearing | None = None,
        handling: Handling | None = None,
        progress: Progress | None = None,
    ) -> Region: ...
    def zeros(
        self,
        shape: int | Sequence[int],
        dtype: npt.DTypeLike = None,
        *,
        order: Literal["C", "F"] = "C",
        threads: int | None = None,
    ) -> Array: ...
    def empty(
        self,
        shape: int | Sequence[int],
        dtype: npt.DTypeLike = None,
        *,
        order: Literal["C", "F"] = "C",
        threads: int | None = None,
    ) -> Array: ...
    def scrub(self) -> int: ...
    def pause_scrubbing(self) -> None: ...
    def resume_scrubbing(self) -> None: ...
    def stats(self) -> dict[str, int]: ...
    @property
    def backing(self) -> Backing: ...
    @property
    def falls(self) -> list[tuple[str, str]]: ...
    @property
    def capacity(self) -> int: ...
    @property
    def page_size(self) -> int: ...

class Region:
    def fork(self, *, granule: int | None = None, handling: Handling | None = None) -> Region: ...
    def snapshot(self, *, handling: Handling | None = None) -> Snapshot: ...
    def release(self, offset: int, length: int) -> None: ...
    def ready(self, offset: int = 0, length: int | None = None) -> None: ...
    def prefault(
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
    def serving(self) -> Handling | None: ...
    @property
    def shared_bytes(self) -> int: ...
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

class Snapshot:
    def __enter__(self) -> Snapshot: ...
    def __exit__(self, *_error: object) -> None: ...
    def close(self) -> None: ...
    def to_numpy(self, *, progress: Progress | None = None) -> Any: ...
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
    def serving(self) -> Handling | None: ...
    @property
    def closed(self) -> bool: ...

def clear(array: Buffer, *, threads: int | None = None, progress: Progress | None = None) -> None: ...
def copy(
    dst: Buffer, src: Buffer, *, threads: int | None = None, progress: Progress | None = None
) -> None: ...
def zeros(
    shape: int | Sequence[int],
    dtype: npt.DTypeLike = None,
    *,
    order: Literal["C", "F"] = "C",
    pool: Pool | None = None,
    threads: int | None = None,
) -> Array: ...
def empty(
    shape: int | Sequence[int],
    dtype: npt.DTypeLike = None,
    *,
    order: Literal["C", "F"] = "C",
    pool: Pool | None = None,
    threads: int | None = None,
) -> Array: ...
def zeros_like(
    array: npt.ArrayLike,
    dtype: npt.DTypeLike = None,
    *,
    pool: Pool | None = None,
    threads: int | None = None,
) -> Array: ...
def empty_like(
    array: npt.ArrayLike,
    dtype: npt.DTypeLike = None,
    *,
    pool: Pool | None = None,
    threads: int | None = None,
) -> Array: ...
def fork(array: Array) -> Array: ...
def region_of(array: Array) -> tuple[Region, int]: ...
def snapshot(
    arrays: Buffer | Sequence[Buffer] | Mapping[str, Buffer],
    *,
    handling: Handling | None = None,
    granule: Literal["huge", "small"] | None = None,
    hold_at_most: int | None = None,
    ready: int | None = None,
) -> Snapshot: ...
def default_pools() -> list[Pool]: ...
def trim() -> int: ...
def doctor() -> _Report: ...
