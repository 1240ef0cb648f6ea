"""numpy against hugekit, in turns: fresh arrays, copies, and what one call costs.

    python compare.py [--mebibytes 1024] [--rounds 9]

Prints medians, and the median of ratios within rounds; above 1 means that hugekit is faster. Memory is warmed first:
in a virtual machine, memory that no process ever touched costs many times more on its first touch.
"""

import argparse
import statistics
import time

import hugekit
import numpy as np


def timed(work):
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def compare(title, numpys, ours, rounds, prepare=lambda: None):
    """Both in every round, taking turns to come first; preparation is not counted."""
    pairs = []
    for number in range(rounds + 1):
        times = {}
        for work in (numpys, ours) if number % 2 else (ours, numpys):
            prepare()
            times[work] = timed(work)
        pairs.append((times[numpys], times[ours]))
    pairs = pairs[1:]  # The first one warms.
    ratios = [slow / fast for slow, fast in pairs]
    print(
        f"{title:44} {statistics.median(a for a, _ in pairs) * 1e3:9.2f} ms "
        f"{statistics.median(b for _, b in pairs) * 1e3:9.2f} ms   "
        f"{statistics.median(ratios):5.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mebibytes", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--backing", help="of the pool; as hugekit chooses if not said")
    options = parser.parse_args()
    size = options.mebibytes << 20
    pool = hugekit.Pool(size, backing=options.backing)
    print(f"pool on {pool.backing}; numpy's huge pages: {np.__version__}, as it does by itself")
    print(f"{'':44} {'numpy':>12} {'hugekit':>12}   ratio")

    def numpys_zeros():
        array = np.zeros(size, "u1")
        array[:] = 1

    def our_zeros():
        array = pool.zeros(size, "u1")
        array[:] = 1

    # The method that needs it finds clean memory: the pool cleans while no method is timed.
    compare("zeros from a clean pool, all of it written", numpys_zeros, our_zeros, options.rounds, pool.scrub)

    source, target = np.ones(size, "u1"), np.ones(size, "u1")
    for threads in (1, 2):
        compare(
            f"copy, {threads} thread{'s' * (threads > 1)}",
            lambda: np.copyto(target, source),
            lambda: hugekit.copy(target, source, threads=threads),
            options.rounds,
        )

    small, calls = np.ones(64, "u1"), range(100_000)

    def fill():
        for _ in calls:
            small.fill(0)

    def clear():
        for _ in calls:
            hugekit.clear(small)

    costs = [(timed(fill) / len(calls), timed(clear) / len(calls)) for _ in range(options.rounds)]
    numpys, ours = (statistics.median(side) * 1e9 for side in zip(*costs))
    print(f"one call for 64 bytes: fill(0) {numpys:.0f} ns, hugekit.clear {ours:.0f} ns, {ours - numpys:+.0f} ns")


if __name__ == "__main__":
    main()
