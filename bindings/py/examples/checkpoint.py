"""A training loop over gigabytes of arrays that saves a consistent checkpoint every few steps, in four ways.

    python checkpoint.py [--gigabytes 1] [--rounds 3] [--plot checkpoint.png]

Each step updates a few megabytes of one array, as sparse optimisers and embedding tables do. A checkpoint is all
arrays at the end of one step:

    none        no checkpoint: how long a step takes
    save        numpy.savez in the loop: training stops until the file is written
    copy        a copy of all arrays in the loop, and numpy.savez of the copy in a thread
    snapshot    hugekit.snapshot in the loop, and its savez in a thread

The ways take turns. What counts is the longest step from a checkpoint on until its file is there: the time that a
training step, a server's request or a simulation's tick has to wait. Every file is compared with the arrays as they
were, byte for byte; steps stand still meanwhile and are not counted.
"""

import argparse
import json
import os
import statistics
import tempfile
import threading
import time

import hugekit
import numpy as np

WAYS = ("none", "save", "copy", "snapshot")


class Training:
    """Arrays and a step that changes some of them. The memory for copies, and for what a snapshot retains, is there
    before anything is timed."""

    def __init__(self, options, folder):
        self.options = options
        rows = int(options.gigabytes * (1 << 30)) // (options.arrays * 1024 * 4)
        self.arrays = {f"layer{number}": np.full((rows, 1024), number, "f4") for number in range(options.arrays)}
        self.copies = {name: array.copy() for name, array in self.arrays.items()}
        self.expected = {name: array.copy() for name, array in self.arrays.items()}
        block = max(1, min(rows, int(options.touched * (1 << 20)) // (1024 * 4)))
        self.gradient = np.random.default_rng(1).standard_normal((block, 1024), "f4")
        self.blocks = max(1, rows // block)
        # These steps write faster than any disk: all of it may have to be copied.
        held = sum(array.nbytes for array in self.arrays.values())
        self.reserve = None if options.no_reserve else hugekit.Reserve(held)
        self.path = os.path.join(folder, "checkpoint.npz")
        self.number = 0

    def step(self):
        """Updates one block of one array; another one with each step."""
        names = list(self.arrays)
        array = self.arrays[names[self.number % len(names)]]
        first = (self.number * 7919 % self.blocks) * len(self.gradient)
        part = array[first : first + len(self.gradient)]
        part *= 0.999
        part += self.gradient[: len(part)]
        self.number += 1

    def begin(self, way):
        """The loop's own work for a checkpoint; returns the thread that does the rest, if one does."""
        if way == "save":
            np.savez(self.path, **self.arrays)
        elif way == "copy":
            for name, array in self.arrays.items():
                np.copyto(self.copies[name], array)
            return self.in_thread(lambda: np.savez(self.path, **self.copies))
        elif way == "snapshot":
            moment = hugekit.snapshot(self.arrays, max_cow_bytes=self.options.hold, reserve=self.reserve)
            return self.in_thread(lambda: moment.savez(self.path))
        return None

    @staticmethod
    def in_thread(work):
        thread = threading.Thread(target=work)
        thread.start()
        return thread

    def remember(self):
        for name, array in self.arrays.items():
            np.copyto(self.expected[name], array)

    def verify(self):
        with np.load(self.path) as saved:
            for name, array in self.expected.items():
                if not np.array_equal(saved[name].view("u1"), array.view("u1")):
                    raise SystemExit(f"{self.path}: {name} is not what it was")
        os.remove(self.path)

    def run(self, way):
        """Some steps, a checkpoint, and steps until the file is there, at least as many again.

        Returns the seconds of the steps before, of those from the checkpoint on, and until the file was there."""
        before = [timed(self.step) for _ in range(self.options.steps)]
        self.remember()
        saving, after = None, []
        start = time.perf_counter()

        def checkpoint():
            nonlocal saving
            saving = self.begin(way)
            self.step()

        after.append(timed(checkpoint))
        while saving is not None and saving.is_alive():
            after.append(timed(self.step))
        took = time.perf_counter() - start
        if saving is not None:
            saving.join()
        if way != "none":
            self.verify()
        after += [timed(self.step) for _ in range(self.options.steps)] if way == "none" else []
        return before, after, took


def timed(work):
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def table(runs):
    print(f"{'way':10} {'median step':>12} {'longest step':>13} {'file after':>11} {'steps meanwhile':>16}")
    for way in WAYS:
        before = statistics.median(step for run in runs[way] for step in run[0])
        longest = statistics.median(max(run[1]) for run in runs[way])
        took = statistics.median(run[2] for run in runs[way])
        steps = statistics.median(len(run[1]) for run in runs[way])
        took = f"{took:8.2f} s" if way != "none" else "-"
        print(f"{way:10} {before * 1e3:9.2f} ms {longest * 1e3:10.2f} ms {took:>11} {steps:16.0f}")
    for way in ("save", "copy"):
        ratios = [max(slow[1]) / max(fast[1]) for slow, fast in zip(runs[way], runs["snapshot"])]
        print(
            f"longest step, {way} / snapshot: {statistics.median(ratios):.1f} "
            f"({min(ratios):.1f} to {max(ratios):.1f} in {len(ratios)} rounds)"
        )


def plot(runs, path):
    try:
        import matplotlib
    except ImportError:
        print("no plot: pip install matplotlib")
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 4.5))
    for way in WAYS:
        before, after, _ = runs[way][-1]
        axes.plot(range(-len(before), len(after)), [step * 1e3 for step in before + after], ".-", label=way, lw=0.7)
    axes.axvline(0, color="grey", lw=0.5)
    axes.set(yscale="log", xlabel="step, from the checkpoint on", ylabel="ms", title="How long a step takes")
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    print(f"plot: {path}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=1, help="of all arrays, in GiB")
    parser.add_argument("--arrays", type=int, default=1, help="how many; one is a flat buffer of all parameters")
    parser.add_argument("--touched", type=float, default=4, help="MiB that a step updates")
    parser.add_argument("--steps", type=int, default=50, help="before each checkpoint")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--hold", type=int, help="bytes of copies of each array that a snapshot may hold; all by default")
    parser.add_argument("--no-reserve", action="store_true", help="let snapshots take memory when they need some")
    parser.add_argument("--folder", help="where files are written and removed again")
    parser.add_argument("--plot", help="where a plot goes, if matplotlib is installed")
    parser.add_argument("--json", help="where all step times go")
    options = parser.parse_args()
    runs = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        training = Training(options, folder)
        for number in range(options.rounds):
            # The method that comes first one time comes last another.
            for way in WAYS if number % 2 == 0 else reversed(WAYS):
                runs[way].append(training.run(way))
    table(runs)
    print("all files hold the arrays as they were, byte for byte")
    if options.plot:
        plot(runs, options.plot)
    if options.json:
        with open(options.json, "w") as file:
            json.dump(runs, file)


if __name__ == "__main__":
    main()
