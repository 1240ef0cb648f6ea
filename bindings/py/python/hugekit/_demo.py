"""A training loop that saves its arrays, in three ways that take turns."""

from __future__ import annotations

import dataclasses
import itertools
import os
import statistics
import tempfile
import threading
import time
import zlib
from collections.abc import Callable

import numpy

import hugekit

CHECKPOINT = """A loop updates 4 MiB of its arrays in each step, and saves all of them in three ways that take turns:
it stops and writes them; it copies them first, and a thread writes the copy; it takes a hugekit.snapshot, and a thread
writes that. Prints the longest step from the save until the file is complete. Memory for the copy, and for the copies
of the snapshot, is populated before. Every file is compared with the arrays as they were."""

_ARRAYS = 8
_STEP = 4 << 20
_ROW = 1024 * 4
_MOST = 256 << 20


@dataclasses.dataclass
class _Saved:
    longest: float
    complete: float
    steps: int


class _Training:
    """Arrays, and steps that change some of them."""

    def __init__(self, nbytes: int, path: str):
        rows = max(1, nbytes // (_ARRAYS * _ROW))
        self.arrays = {f"layer{number}": numpy.full((rows, 1024), number, "f4") for number in range(_ARRAYS)}
        self.copies = {name: array.copy() for name, array in self.arrays.items()}
        self.nbytes = sum(array.nbytes for array in self.arrays.values())
        self.reserve = hugekit.Reserve(self.nbytes)
        self.path = path
        self._number = 0

    def step(self) -> float:
        """Updates a part of one array; how long that took."""
        start = time.perf_counter()
        array = self.arrays[f"layer{self._number % _ARRAYS}"]
        rows = min(len(array), _STEP // _ROW)
        first = self._number * 7919 % max(1, len(array) - rows + 1)
        part = array[first : first + rows]
        part *= 0.999
        part += 0.001
        self._number += 1
        return time.perf_counter() - start

    def stop(self) -> None:
        numpy.savez(self.path, **self.arrays)

    def copy(self) -> threading.Thread:
        for name, array in self.arrays.items():
            numpy.copyto(self.copies[name], array)
        return _started(lambda: numpy.savez(self.path, **self.copies))

    def snapshot(self) -> threading.Thread:
        moment = hugekit.snapshot(self.arrays, reserve=self.reserve)
        return _started(lambda: moment.savez(self.path))

    def saved(self, begin: Callable[[], threading.Thread | None]) -> _Saved:
        """Trains, saves, and trains on until the file is complete."""
        for _ in range(20):
            self.step()
        expected = {name: zlib.crc32(array.data) for name, array in self.arrays.items()}
        start = time.perf_counter()
        writer = begin()
        durations = [time.perf_counter() - start + self.step()]
        while writer is not None and writer.is_alive():
            durations.append(self.step())
        complete = time.perf_counter() - start
        with numpy.load(self.path) as found:
            # A thread that failed has printed why.
            if {name: zlib.crc32(found[name].data) for name in found} != expected:
                raise OSError(f"{self.path} does not contain the arrays as they were")
        os.remove(self.path)
        return _Saved(max(durations), complete, len(durations))


def _started(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def checkpoint(megabytes: int | None, seconds: float, folder: str | None) -> None:
    """Prints a table of the three ways, and the longest step with each."""
    end = time.perf_counter() + seconds
    nbytes = megabytes << 20 if megabytes else min(_MOST, _available() // 8)
    with tempfile.TemporaryDirectory(dir=folder) as place:
        training = _Training(nbytes, os.path.join(place, "checkpoint.npz"))
        ways: dict[str, Callable[[], threading.Thread | None]] = {
            "numpy.savez: training stops": training.stop,
            "copied first, a thread saves the copy": training.copy,
            "hugekit.snapshot, a thread saves it": training.snapshot,
        }
        rounds = _rounds(training, ways, end)
        plain = statistics.median(training.step() for _ in range(100))
    _print(training.nbytes, os.path.dirname(place), plain, rounds)


def _available() -> int:
    with open("/proc/meminfo") as file:
        kilobytes = next(int(line.split()[1]) for line in file if line.startswith("MemAvailable:"))
    return kilobytes << 10


def _rounds(
    training: _Training, ways: dict[str, Callable[[], threading.Thread | None]], end: float
) -> dict[str, list[_Saved]]:
    start = time.perf_counter()
    done: dict[str, list[_Saved]] = {name: [] for name in ways}
    for number in itertools.count(1):
        for name, begin in ways.items():
            done[name].append(training.saved(begin))
        now = time.perf_counter()
        # Another round would take as long as those before.
        if now + (now - start) / number > end:
            break
    return done


def _print(nbytes: int, folder: str, plain: float, rounds: dict[str, list[_Saved]]) -> None:
    number = len(next(iter(rounds.values())))
    print(f"{nbytes >> 20} MiB in {_ARRAYS} arrays, saved to {folder}; medians of rounds in turn: {number}.\n")
    print(f"{'':40}{'longest step':>14}{'file complete':>16}{'steps meanwhile':>18}")
    for name, saved in rounds.items():
        longest, complete, steps = (
            statistics.median(getattr(one, field.name) for one in saved) for field in dataclasses.fields(_Saved)
        )
        print(f"{name:40}{longest * 1e3:11.1f} ms{complete:14.2f} s{steps:18.0f}")
    print(f"\nA step alone takes {plain * 1e3:.1f} ms. Every file held the arrays as they were when it was saved.")
