"""Checkpoints of arrays as chains of deltas: the first file is full, each later one contains the changes."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy

from ._hugekit import ArrayChain, Moment, Reserve, StoredState
from ._tensors import Leaf, new_array, new_tensor
from ._trees import Path, name_of, paths_of, put_together, take_apart, with_gradients

# The first bytes of a state: this, how long the header is, how long its JSON is, and the JSON.
_MAGIC = b"HKARRAYS"
_OPENING = len(_MAGIC) + 8 + 8
_PAGE = 4096
_VERSION = 2
_GAPS = "its elements do not lie side by side"


@dataclass(frozen=True, slots=True)
class Saved:
    """The result of a save of a :class:`Checkpointer`.

    >>> weights = numpy.zeros((512, 1024))
    >>> folder = tempfile.TemporaryDirectory()
    >>> saver = hugekit.Checkpointer({"weights": weights})
    >>> saved = saver.save(folder.name + "/0.delta")
    >>> saved.is_full, saved.reason
    (True, 'it is the first one')
    """

    path: str
    """The path of the file."""
    is_full: bool
    """Whether the file contains all arrays, and so begins a chain."""
    reason: str | None
    """The reason why the file is full; None for a delta."""
    changed: int
    """Bytes of the arrays that the file contains or marks as zero, in blocks of 4 KiB."""
    written: int
    """Bytes of the file."""
    state: str
    """The state after this file, as ``hugekit delta info`` prints it."""
    copied_bytes: int
    """Bytes of the arrays that were copied at once, because they cannot be protected."""
    copied: dict[str, str]
    """The names of these arrays, with the reasons."""
    paused: float
    """Seconds for which all Python code was stopped, so that the arrays are of one moment."""
    seconds: float
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

    def __init__(self, save: Callable[[threading.Event], Saved]):
        self._outcome: Saved | BaseException | None = None
        self._is_refused = False
        # When the arrays are taken, or never will be.
        self._taken = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(save,), name="hugekit.Checkpointer")
        try:
            self._thread.start()
        except RuntimeError:
            # The interpreter ends, or this user may have no more threads.
            self._run(save)

    def _run(self, save: Callable[[threading.Event], Saved]) -> None:
        try:
            self._outcome = save(self._taken)
        except BaseException as error:
            self._is_refused = not self._taken.is_set()
            self._outcome = error
        self._taken.set()
        # The frame is one of the exception's, which would keep the arrays alive in a cycle.
        del self

    def _wait_until_taken(self) -> None:
        self._taken.wait()
        if self._is_refused and isinstance(self._outcome, BaseException):
            raise self._outcome

    def _wait_until_over(self, timeout: float | None = None) -> None:
        if self._outcome is None:
            self._thread.join(timeout)

    def wait(self, timeout: float | None = None) -> Saved:
        """Wait until the file is complete, and return the result.

        Args:
            timeout: the limit in seconds. By default no limit.

        Raises:
            TimeoutError: the save was not complete within the limit. The save continues.
            RuntimeError: this process is a forked child, and its parent makes the save.
            Exceptions: those of :meth:`Checkpointer.save`, if the save has failed.
        """
        self._wait_until_over(timeout)
        outcome = self._known()
        if outcome is None:
            raise TimeoutError(f"the save was not complete after {timeout} seconds")
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def done(self) -> bool:
        """Return True if the save is complete or has failed.

        Raises:
            RuntimeError: this process is a forked child, and its parent makes the save.
        """
        return self._known() is not None

    def _known(self) -> Saved | BaseException | None:
        # Asked first, because the thread ends last. In a forked child it has ended, wherever it was.
        is_alive, outcome = self._thread.is_alive(), self._outcome
        if outcome is None and not is_alive:
            raise RuntimeError("not available in a forked child: wait for the save in the parent process")
        return outcome

    def __repr__(self) -> str:
        return f"<hugekit.Saving, {'under way' if self._outcome is None else 'done'}>"

    def __reduce__(self) -> Any:
        raise TypeError("a hugekit.Saving stays in its process: send what its wait() returns")


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
        fault_mode: str | None = None,
        granule: str | None = None,
        max_cow_bytes: int | None = None,
        strict: bool = False,
    ):
        self._arrays = arrays
        self._wishes = (reserve, fault_mode, granule, max_cow_bytes, strict)
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._saving: Saving | None = None
        self._at_work: threading.Thread | None = None
        self._layout: _Layout | None = None
        self._anew: str | None = "it is the first one"
        # The last full one and those behind it, all of which a further one needs.
        self._files: list[str] = []
        self._closed = False
        # Bad input is an error now, not at the first save.
        self._described()

    def save(
        self, path: str | os.PathLike[str], *, full: bool = False, wait: bool = True, fsync: bool = True
    ) -> Saved | Saving:
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
        self._look_at_process()
        self._wait_for_earlier()
        start = time.perf_counter()
        # The program's code runs in the thread that it knows: torch has a default device for each.
        tree, leaves = self._described()
        place = os.fspath(path)

        def take_and_write(taken: threading.Event) -> Saved:
            with self._turn():
                if self._closed:
                    raise ValueError("the checkpointer was closed: make a new one; its first save is full")
                file = os.path.realpath(place)
                if self._anew is None and file in self._files and os.path.exists(file):
                    self._anew = "it replaces a file that the changes would need"
                layout, moment, reason, paused, copied = self._take(tree, leaves, full)
                taken.set()
                is_full, changed, written, state = layout.chain.write(moment, place, fsync)
                self._files = [file] if is_full else [*self._files, file]
            reasons = {name: reason for name, (_, reason) in copied.items()}
            bytes_copied = sum(nbytes for nbytes, _ in copied.values())
            seconds = time.perf_counter() - start
            return Saved(place, is_full, reason, changed, written, state, bytes_copied, reasons, paused, seconds)

        saving = self._saving = Saving(take_and_write)
        try:
            if wait:
                return saving.wait()
            saving._wait_until_taken()
            return saving
        except BaseException:
            # Ctrl-C comes when the program can change nothing of the file any more: before, its handler could.
            saving._taken.wait()
            if wait:
                saving._wait_until_over()
            raise

    def restore(self, paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> Any:
        """Read a checkpoint into the arrays of this object; see :func:`restore`."""
        return restore(paths, self._tree())

    def prepare_write(self, array: Any) -> None:
        """Let a system call write to an array, or to a contiguous view of an array, without EFAULT. The array counts as
        changed.

        Only arrays whose faults are handled in place need this call; see :func:`snapshot`.

        Raises:
            RuntimeError: a save is not complete yet.
        """
        self._look_at_process()
        if self._layout is not None:
            self._layout.chain.prepare_write(array)

    @property
    def serving(self) -> str | None:
        """The mode in which faults of writers are handled since the last save: "threaded" or "in place". "copied" if
        arrays are copied at each save. None if all arrays are smaller than 1 MiB.
        """
        self._look_at_process()
        return None if self._layout is None else self._layout.chain.serving

    def close(self) -> None:
        """Lift the protection of the arrays. If a save is not complete, wait for it. A second call does nothing."""
        self._look_at_process()
        self._wait_for_earlier()

        def end() -> None:
            with self._turn():
                self._closed, self._layout = True, None

        ending = threading.Thread(target=end, name="hugekit.Checkpointer")
        try:
            ending.start()
        except RuntimeError:
            end()
        else:
            ending.join()

    def __enter__(self) -> Checkpointer:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _look_at_process(self) -> None:
        if self._process != os.getpid():
            # The lock may be held by a thread that this process has not.
            self._process, self._lock, self._saving, self._at_work = os.getpid(), threading.Lock(), None, None
            self._layout, self._anew = None, "the process was forked, and has no epochs"

    def _wait_for_earlier(self) -> None:
        if self._at_work is threading.current_thread():
            raise RuntimeError(
                "this call is a part of a save of the same checkpointer, as in a handler of logging or a finalizer: save after it"
            )
        saving = self._saving
        if saving is not None:
            saving._wait_until_over()

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        """Only threads of this class wait for a turn. Python runs handlers of signals in the main thread, between any two of
        its steps: a handler that saves would wait for ever if the main thread itself had the turn."""
        with self._lock:
            self._at_work = threading.current_thread()
            try:
                yield
            finally:
                self._at_work = None

    def __reduce__(self) -> Any:
        raise TypeError("a hugekit.Checkpointer stays in its process: make another one there")

    def _tree(self) -> Any:
        # A model can be called too, and is refused by name.
        is_function = callable(self._arrays) and not hasattr(self._arrays, "state_dict")
        return self._arrays() if is_function else self._arrays

    def _described(self) -> tuple[dict[str, Any], dict[Path, Leaf]]:
        tree, leaves = take_apart(self._tree())
        if self._wishes[-1]:
            for leaf in leaves.values():
                leaf.refuse_gaps()
        return tree, leaves

    def _take(
        self, tree: dict[str, Any], leaves: dict[Path, Leaf], full: bool
    ) -> tuple[_Layout, Moment, str | None, float, dict[str, tuple[int, str]]]:
        """The arrays now, why the file will be full, for how long Python code stood still, and what was copied at once."""
        layout = self._layout
        if layout is not None and (change := layout.differs(leaves)) is not None:
            self._anew = change
            layout = None
        if layout is None:
            # The memory is not to have epochs of both.
            self._layout = None
            layout = _Layout(leaves, tree, self._wishes)
        elif not layout.has_room(tree):
            self._anew = "its numbers and strings have outgrown the room that was kept for them"
            layout.make_room(tree)
        if full and self._anew is None:
            self._anew = "full=True"
        self._layout = layout
        start = time.perf_counter()
        moment, lost, unprotected = layout.chain.take(layout.header(tree), self._anew is not None)
        paused = time.perf_counter() - start
        reason, self._anew = self._anew or lost, None
        return layout, moment, reason, paused, layout.copied(unprotected)


class _Layout:
    """Where each array is in a state, and the chain of states with that layout."""

    def __init__(self, leaves: dict[Path, Leaf], tree: dict[str, Any], options: tuple[Any, ...]):
        self.chain = ArrayChain([leaf.flat for leaf in leaves.values()], *options)
        self._identity = _identity(leaves)
        self._gaps = {leaf.name: (leaf.nbytes, _GAPS) for leaf in leaves.values() if leaf.has_gaps}
        self._entries = [
            {
                "name": leaf.name,
                "of": leaf.of,
                "dtype": leaf.dtype,
                "shape": leaf.shape,
                "axes": leaf.axes,
                "offset": place,
                "bytes": leaf.nbytes,
            }
            for leaf, place in zip(leaves.values(), self.chain.places)
        ]
        self._room = 0
        self.make_room(tree)

    def differs(self, leaves: dict[Path, Leaf]) -> str | None:
        """What is other than in the layout; None if nothing is."""
        before, now = self._identity, _identity(leaves)
        if before == now:
            return None
        for path, found in now.items():
            if path not in before:
                return f"{name_of(path)} is new"
            if before[path] != found:
                (was, _), (kind, _) = before[path], found
                return f"{name_of(path)} {'lies elsewhere' if was == kind else f'was {was} and is {kind}'}"
        for path in before:
            if path not in now:
                return f"{name_of(path)} is gone"
        return "the arrays have another order"

    def copied(self, unprotected: Sequence[tuple[int, int, str]]) -> dict[str, tuple[int, str]]:
        """The arrays that were copied at once: their bytes and the reasons."""
        found = dict(self._gaps)
        for start, end, reason in unprotected:
            for entry in self._entries:
                if start <= entry["offset"] < end and entry["bytes"]:
                    found[entry["name"]] = entry["bytes"], reason
        return found

    def has_room(self, tree: dict[str, Any]) -> bool:
        return _OPENING + len(self._json(tree)) <= self._room

    def make_room(self, tree: dict[str, Any]) -> None:
        """A header in which numbers and strings may become a quarter longer."""
        needed = _OPENING + len(self._json(tree))
        self._room = -(-(needed + needed // 4 + 1024) // _PAGE) * _PAGE

    def header(self, tree: dict[str, Any]) -> bytes:
        text = self._json(tree)
        opening = _MAGIC + self._room.to_bytes(8, "little") + len(text).to_bytes(8, "little")
        return (opening + text).ljust(self._room, b"\0")

    def _json(self, tree: dict[str, Any]) -> bytes:
        document = {"version": _VERSION, "arrays": self._entries, "tree": tree}
        return json.dumps(document, separators=(",", ":"), allow_nan=False).encode()


def _identity(leaves: dict[Path, Leaf]) -> dict[Path, tuple[str, int]]:
    return {path: (f"{leaf.of} {leaf.kind()}", leaf.address) for path, leaf in leaves.items()}


def restore(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], arrays: Any
) -> Any:
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
    _, leaves = take_apart(arrays)
    stored = _Stored(paths)
    stored.refuse_others(leaves)
    ordered = [leaves[path] for path in stored.paths]
    tree = stored.tree([leaf.thing for leaf in ordered], arrays)
    # What has gaps is read elsewhere first.
    places = [numpy.empty(leaf.shape, leaf.flat.dtype) if leaf.has_gaps else leaf.flat for leaf in ordered]
    stored.fill(places)
    for leaf, place in zip(ordered, places):
        if leaf.has_gaps:
            numpy.copyto(leaf.flat, place)
    return tree


def load_checkpoint(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], *, as_numpy: bool = False
) -> Any:
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
    stored = _Stored(paths)
    things = [stored.new(entry, as_numpy) for entry in stored.entries]
    tree = stored.tree(things)
    stored.fill([Leaf(thing, entry["name"]).flat for thing, entry in zip(things, stored.entries)])
    return tree


class _Stored:
    """A checkpoint as files have it, all of it checked."""

    def __init__(self, paths: Any):
        if not isinstance(paths, (str, os.PathLike, Sequence)):
            raise TypeError(f"paths is {paths!r}, and can be a path or a list of paths")
        files = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
        self._state = StoredState(files)
        self._last = os.fspath(files[-1])
        try:
            self._read(self._state.header)
        except MemoryError:
            raise
        except Exception as error:
            # Whatever a file says that no checkpointer has written.
            raise ValueError(f"{self._last}: the description of its arrays cannot be read: {error}") from None

    def _read(self, header: bytes) -> None:
        length = int.from_bytes(header[len(_MAGIC) + 8 : _OPENING], "little")
        document = json.loads(header[_OPENING : _OPENING + length])
        if document["version"] > _VERSION:
            raise ValueError(f"it has version {document['version']}, this hugekit reads {_VERSION}: update it")
        self.entries: list[Mapping[str, Any]] = [_checked(entry, self._state.length) for entry in document["arrays"]]
        self._tree = document["tree"]
        paths = paths_of(self._tree)
        if sorted(paths) != list(range(len(self.entries))):
            raise ValueError(f"it names {len(paths)} arrays and has {len(self.entries)}")
        self.paths = [paths[number] for number in range(len(paths))]

    def refuse_others(self, leaves: dict[Path, Leaf]) -> None:
        """Raises unless the arrays are those that were saved."""
        missing = [name_of(path) for path in self.paths if path not in leaves]
        if missing:
            raise ValueError(f"{self._last}: it has {_some(missing)}, which the arrays lack")
        added = [name_of(path) for path in leaves if path not in self.paths]
        if added:
            raise ValueError(f"{self._last}: it lacks {_some(added)}, which the arrays have")
        for path, entry in zip(self.paths, self.entries):
            leaf = leaves[path]
            if (leaf.dtype, leaf.shape, leaf.axes) != (entry["dtype"], entry["shape"], entry["axes"]):
                order = "" if leaf.axes == entry["axes"] else f" (in memory by the axes {entry['axes']})"
                raise ValueError(
                    f"{self._last}: {leaf.name} was saved as {entry['dtype']} of the shape {entry['shape']}{order}, "
                    f"and is {leaf.kind()}"
                )
            if not leaf.flat.flags.writeable:
                raise ValueError(f"{leaf.name} is read-only, and cannot be restored into")

    def new(self, entry: Mapping[str, Any], as_numpy: bool) -> Any:
        make = new_tensor if entry["of"] == "torch" and not as_numpy else new_array
        try:
            return make(*(entry[key] for key in ("name", "dtype", "shape", "axes", "bytes")))
        except ValueError as error:
            raise ValueError(f"{self._last}: {error}") from None
        except ImportError as error:
            raise ImportError(f"{self._last}: {error}") from None
        except MemoryError as error:
            # numpy's own class is made of a shape and a dtype.
            raise MemoryError(f"{self._last}: {entry['name']}: {error}") from None

    def tree(self, things: list[Any], like: Any = None) -> Any:
        """The tree with these arrays, made before they are filled: whatever is wrong with it changes none of them."""
        try:
            return put_together(self._tree, things if like is not None else with_gradients(self._tree, things), like)
        except MemoryError:
            raise
        except ImportError as error:
            raise ImportError(f"{self._last}: {error}") from None
        except Exception as error:
            raise ValueError(f"{self._last}: the description of its arrays cannot be read: {error}") from None

    def fill(self, flat: list[Any]) -> None:
        self._state.apply([(entry["offset"], array) for entry, array in zip(self.entries, flat)])


def _checked(entry: Any, length: int) -> Mapping[str, Any]:
    """An array's description, with tuples for what are lists in JSON; nothing of it is believed."""
    shape, axes = tuple(entry["shape"]), tuple(entry["axes"])
    numbers = (*shape, *axes, entry["offset"], entry["bytes"])
    if not all(type(number) is int and number >= 0 for number in numbers) or sorted(axes) != list(range(len(shape))):
        raise ValueError(f"{entry['name']} has invalid numbers")
    if entry["offset"] + entry["bytes"] > length:
        raise ValueError(f"{entry['name']} lies beyond the end of the state")
    if not all(type(entry[key]) is str for key in ("name", "of", "dtype")):
        raise ValueError("an array has no name, or no dtype")
    return {**entry, "shape": shape, "axes": axes}


def _some(names: list[str]) -> str:
    """The first names, and how many more there are."""
    shown = ", ".join(names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"
