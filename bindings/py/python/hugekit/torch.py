"""hugekit for PyTorch: :class:`SnapshotStager` saves without a copy first, and :func:`pinned` makes memory for GPUs.

>>> import torch.distributed.checkpoint as dcp
>>> from hugekit.torch import SnapshotStager
>>> model, folder = torch.nn.Linear(1024, 1024), tempfile.TemporaryDirectory()
>>> stager = SnapshotStager()
>>> saving = dcp.async_save({"model": model.state_dict()}, checkpoint_id=folder.name, async_stager=stager, no_dist=True)
>>> model.weight.data += 1                           # training continues; this is not in the checkpoint
>>> _ = saving.upload_completion.result()
>>> stager.close()
"""

from __future__ import annotations

import copy
import os
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Iterator, Literal

try:
    import torch
    from torch.distributed.checkpoint.staging import AsyncStager

    # Versions of torch with this class can wait for a staged state.
    from torch.distributed.checkpoint.state_dict_saver import AsyncSaveResponse as _  # noqa: F401
except ImportError as _missing:
    raise ImportError(
        f"hugekit.torch needs PyTorch with torch.distributed.checkpoint.async_save of 2.9 or later ({_missing}): "
        "pip install hugekit[torch]"
    ) from _missing

from ._hugekit import Kept, _stage
from ._kinds import bytes_at
from ._pinned import pinned
from ._trees import alike, children_of, name_of

__all__ = ["SnapshotStager", "pinned"]

# Shorter storages are copied at once, because protecting them lasts as long.
_COPIED = 1 << 20


class SnapshotStager(AsyncStager):
    """A stager that stages a state dict by a snapshot: ``async_save`` returns when the tensors are protected.

    PyTorch's own stager copies all tensors before ``async_save`` returns, and training waits for it. This stager protects
    them as :func:`hugekit.snapshot` does, and a thread copies them while training continues. A step that writes to bytes
    that are not copied yet waits until they are: 64 KiB, more if it writes in order, or 2 MiB on huge pages. Each byte is
    copied once, so the state is in memory twice, as with PyTorch's stager. The memory of the copy stays with the stager
    until :meth:`close`: the next staging uses it again.

    ``async_save`` then returns an ``AsyncSaveResponse`` with two futures. After ``staging_completion``, steps copy
    nothing aside. After ``upload_completion``, the checkpoint is complete. Training need not wait for these futures. The
    next ``async_save`` should wait for the previous ``async_save``.

    Only CPU tensors are staged by a snapshot. Each storage is staged as a whole and once, also if several tensors share
    the storage. Storages of less than 1 MiB are copied at once. A tensor that consists of other tensors, such as a DTensor
    or a tensor of torchao, is rebuilt from the staged tensors. Tensors of other devices are copied to the CPU at once.
    Tensors of other classes are copied by ``copy.deepcopy``.

    Args:
        fault_mode: see :func:`hugekit.snapshot`.
        strict: refuse storages that cannot be protected, because they are shared or a file's, instead of copying them
            at once.

    Raises:
        PermissionError: this process may not handle page faults. Raised by :meth:`stage`.
        OSError: with ``strict``, the memory cannot be protected. Raised by :meth:`stage`.
        MemoryError: less memory is available than the state has. Raised by :meth:`stage`.
    """

    def __init__(
        self,
        *,
        fault_mode: Literal["threaded", "in place"] | None = None,
        strict: bool = False,
    ) -> None:
        self._fault_mode: Literal["threaded", "in place"] | None = fault_mode
        self._strict = strict
        self._kept = Kept()
        self._copied: dict[str, str] = {}
        self._copied_bytes = 0
        self._process = os.getpid()
        self._executor: ThreadPoolExecutor | None = None
        self._staging: Future[Any] | None = None

    def _look_at_process(self) -> None:
        if self._process != os.getpid():
            # Threads stay in the process that this one was forked from.
            self._process, self._executor, self._staging = os.getpid(), None, None

    def stage(self, state_dict: Any, **_options: Any) -> Future[Any]:
        """Return a future of a copy of the present state dict, in separate memory.

        Args:
            state_dict: dicts, lists and tuples of tensors, which keep their class. Other objects are copied by
                ``copy.deepcopy``.
        """
        self._look_at_process()
        # The previous state goes before this one needs memory.
        self._staging = None
        sources = _sources(state_dict)
        # The moment of the checkpoint: until this method returns, no Python code of this thread writes.
        staging = _stage(
            {name: memory for name, memory in sources.values()},
            self._kept,
            fault_mode=self._fault_mode,
            strict=self._strict,
        )
        self._copied, self._copied_bytes = staging.copied, staging.copied_bytes
        arrays = staging.arrays()
        staged = _Staged({key: arrays[name] for key, (name, _) in sources.items()})
        tree = staged.tree(state_dict, ())

        def fill() -> Any:
            staging.copy()
            return tree

        if self._executor is None:
            self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="hugekit.SnapshotStager")
        self._staging = self._executor.submit(fill)
        return self._staging

    @property
    def copied(self) -> dict[str, str]:
        """The names of the tensors whose storages the last :meth:`stage` copied at once, because they cannot be protected,
        with the reasons."""
        return dict(self._copied)

    @property
    def copied_bytes(self) -> int:
        """The number of bytes of the storages that the last :meth:`stage` copied at once."""
        return self._copied_bytes

    def synchronize_staging(self) -> None:
        """Wait until the last staged state dict is copied. Training need not call this."""
        self._look_at_process()
        if self._staging is not None:
            self._staging.result()

    def close(self) -> None:
        """Wait for the last staging, end the thread, and free the memory. The next :meth:`stage` starts a new one."""
        self._look_at_process()
        if self._executor is not None:
            self._executor.shutdown(wait=True)
            self._executor = None
        self._kept.clear()


def _sources(tree: Any) -> dict[int, tuple[str, Any]]:
    """The storages of a tree that are to be staged: their names and bytes, by what torch knows them."""
    sources: dict[int, tuple[str, Any]] = {}
    names: set[str] = set()
    for tensor, path in _plain_tensors(tree, ()):
        storage = tensor.untyped_storage()
        if storage._cdata in sources or storage.nbytes() < _COPIED:
            continue
        name = _named(path)
        if name in names:
            # Keys such as "a.b" and "a" with "b" in it.
            name = f"{name} ({len(sources)})"
        names.add(name)
        sources[storage._cdata] = name, bytes_at(storage, storage.data_ptr(), storage.nbytes())
    return sources


def _plain_tensors(tree: Any, path: tuple[Any, ...]) -> Iterator[tuple[torch.Tensor, tuple[Any, ...]]]:
    """The tensors in a tree whose bytes lie in a storage of the CPU, with those of which others consist."""
    if isinstance(tree, torch.Tensor):
        if type(tree) in (torch.Tensor, torch.nn.Parameter):
            if _is_plain(tree):
                yield tree, path
        elif hasattr(type(tree), "trigger_wait"):
            yield from _plain_tensors(tree.trigger_wait(), path)
        elif _is_of_parts(tree):
            for name in tree.__tensor_flatten__()[0]:
                yield from _plain_tensors(getattr(tree, name), (*path, name))
        return
    children = children_of(tree)
    if children is None and isinstance(tree, dict):
        children = list(tree.items())
    for step, child in children or ():
        yield from _plain_tensors(child, (*path, step))


def _is_plain(tensor: torch.Tensor) -> bool:
    special = tensor.is_nested or tensor.layout != torch.strided or tensor.is_quantized
    special = special or tensor.is_conj() or tensor.is_neg() or tensor._is_zerotensor()
    return tensor.device.type == "cpu" and not special


def _is_of_parts(tensor: torch.Tensor) -> bool:
    return hasattr(type(tensor), "__tensor_flatten__") and tensor.device.type == "cpu" and not tensor.is_nested


class _Staged:
    """A tree whose tensors lie in other storages. ``arrays`` has the memory of those that are staged."""

    def __init__(self, arrays: dict[int, Any]) -> None:
        self._arrays = arrays
        self._storages: dict[int, torch.UntypedStorage] = {}
        self._memo: dict[int, Any] = {}

    def tree(self, tree: Any, path: tuple[Any, ...]) -> Any:
        if isinstance(tree, torch.Tensor):
            return self._tensor(tree, path)
        children = children_of(tree)
        if children is not None:
            return alike(tree, [self.tree(child, (*path, step)) for step, child in children])
        if isinstance(tree, dict):
            return self._dict(tree, path)
        return copy.deepcopy(tree, self._memo)

    def _dict(self, tree: Any, path: tuple[Any, ...]) -> Any:
        """Return a dict of a class of the program, with its attributes, and with staged tensors."""
        made, attributes = copy.copy(tree), getattr(tree, "__dict__", {})
        if made is tree or attributes is tree:
            return copy.deepcopy(tree, self._memo)
        for name, value in copy.deepcopy(attributes, self._memo).items():
            setattr(made, name, value)
        for key, value in tree.items():
            made[key] = self.tree(value, (*path, key))
        return made

    def _tensor(self, tensor: torch.Tensor, path: tuple[Any, ...]) -> torch.Tensor:
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
            return self._subclass(tensor, path)
        tensor = tensor.detach()
        if tensor.device.type != "cpu":
            return tensor.to("cpu", copy=True)
        if not _is_plain(tensor):
            return tensor.clone()
        storage = self._storage(tensor.untyped_storage())
        # The program may have set another device.
        staged = torch.empty(0, dtype=tensor.dtype, device="cpu")
        return staged.set_(storage, tensor.storage_offset(), tensor.size(), tensor.stride())

    def _subclass(self, tensor: torch.Tensor, path: tuple[Any, ...]) -> torch.Tensor:
        if hasattr(type(tensor), "trigger_wait"):
            # The result of a collective operation that may be under way.
            return self._tensor(tensor.trigger_wait(), path)
        if id(tensor) in self._memo:
            return self._memo[id(tensor)]
        try:
            made = self._of_parts(tensor, path)
            made = self._copied(tensor) if made is None else made
        except Exception as error:
            kind = type(tensor).__name__
            raise TypeError(
                f"{_named(path)} is a {kind}, and cannot be copied: {error}; write tensor.dequantize() or "
                "tensor.as_subclass(torch.Tensor), whichever it has"
            ) from error
        self._memo[id(tensor)] = made
        return made

    def _of_parts(self, tensor: Any, path: tuple[Any, ...]) -> Any:
        """Rebuild a tensor that consists of other tensors, such as a DTensor, from staged tensors. None for other tensors."""
        kind: Any = type(tensor)
        if not _is_of_parts(tensor):
            return None
        names, context = tensor.__tensor_flatten__()
        parts = {name: getattr(tensor, name) for name in names}
        for name, part in parts.items():
            if isinstance(part, torch.Tensor):
                parts[name] = self._tensor(part, (*path, name))
        with torch.no_grad():
            made = kind.__tensor_unflatten__(parts, context, tensor.size(), tensor.stride())
            made.requires_grad_(tensor.requires_grad)
        for name, value in vars(tensor).items():
            if name not in vars(made):
                setattr(made, name, self.tree(value, (*path, name)))
        return made

    def _copied(self, tensor: torch.Tensor) -> torch.Tensor:
        try:
            return copy.deepcopy(tensor, self._memo)
        except RuntimeError:
            made = tensor.detach().clone()
            if type(made) is not type(tensor):
                raise
            vars(made).update(copy.deepcopy(vars(tensor), self._memo))
            return made

    def _storage(self, storage: torch.UntypedStorage) -> torch.UntypedStorage:
        """The storage in which the staged tensors lie."""
        known = self._storages.get(storage._cdata)
        if known is not None:
            return known
        array = self._arrays.get(storage._cdata)
        if array is None:
            array = bytes_at(storage, storage.data_ptr(), storage.nbytes()).copy()
        self._storages[storage._cdata] = torch.from_numpy(array).untyped_storage()
        return self._storages[storage._cdata]


def _named(path: tuple[Any, ...]) -> str:
    return (name_of(path) or "the tensor").encode(errors="backslashreplace").decode()
