"""A gigabyte of arrays of which a little changes, saved in full and as deltas.

    python deltas.py [--gigabytes 1] [--changed 1] [--rounds 5]

Between two saves some percent of the arrays change, in clusters or in single elements here and there. Each round saves
in full, and then a delta of each kind. What counts is the time of the whole save, until the file is on its device unless
--no-fsync says that the kernel's cache will do. In the end the last chain is read and compared with the arrays.
"""

import argparse
import os
import statistics
import tempfile

import hugekit
import numpy as np


class State:
    def __init__(self, options, folder):
        self.options, self.folder = options, folder
        count = int(options.gigabytes * (1 << 30)) // 8 // options.arrays
        self.chance = np.random.default_rng(1)
        self.arrays = {f"array{number}": self.chance.random(count) for number in range(options.arrays)}
        self.saver = hugekit.Checkpointer(self.arrays, reserve=hugekit.Reserve(64 << 20))
        self.paths = []

    def save(self, full=False):
        if full:
            for path in self.paths:
                os.remove(path)
            self.paths.clear()
        self.paths.append(os.path.join(self.folder, f"{len(self.paths)}.delta"))
        saved = self.saver.save(self.paths[-1], full=full, fsync=not self.options.no_fsync)
        assert saved.is_full == full, saved.reason
        return saved

    def change_clusters(self):
        """The percentage of each array, in 10 clusters."""
        for array in self.arrays.values():
            length = max(1, int(len(array) * self.options.changed / 1000))
            for start in self.chance.integers(0, len(array) - length + 1, 10):
                array[start : start + length] += 1

    def change_here_and_there(self):
        """A hundredth as many bytes, in single elements."""
        for array in self.arrays.values():
            array[self.chance.integers(0, len(array), int(len(array) * self.options.changed / 10000))] += 1

    def verify(self):
        found = hugekit.load_checkpoint(self.paths)
        for name, array in self.arrays.items():
            if not np.array_equal(found[name], array):
                raise SystemExit(f"{name} is not what it was")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=1, help="of all arrays, in GiB")
    parser.add_argument("--arrays", type=int, default=1)
    parser.add_argument("--changed", type=float, default=1, help="percent of the bytes")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-fsync", action="store_true")
    parser.add_argument("--folder", help="where files are written and removed again")
    options = parser.parse_args()
    runs = {"full": [], "clusters": [], "here and there": []}
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        state = State(options, folder)
        state.save(full=True)
        for _ in range(options.rounds):
            runs["full"].append(state.save(full=True))
            state.change_clusters()
            runs["clusters"].append(state.save())
            state.change_here_and_there()
            runs["here and there"].append(state.save())
        state.verify()
    print(f"{'save':15} {'seconds':>9} {'standing still':>15} {'MiB written':>12} {'full / this':>12}")
    for kind, saves in runs.items():
        seconds = statistics.median(save.seconds for save in saves)
        paused = statistics.median(save.paused for save in saves) * 1e3
        written = statistics.median(save.written for save in saves) / (1 << 20)
        ratio = statistics.median(full.seconds / save.seconds for full, save in zip(runs["full"], saves))
        print(f"{kind:15} {seconds:9.3f} {paused:12.2f} ms {written:12.1f} {ratio:12.1f}")
    print("the last chain holds the arrays as they were")


if __name__ == "__main__":
    main()
