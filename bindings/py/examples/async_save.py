"""A training loop in PyTorch that saves by torch.distributed.checkpoint.async_save, staged in two ways.

    pip install hugekit[torch]
    python async_save.py [--gigabytes 4] [--rounds 5]

Each step updates some megabytes of one tensor. The ways take turns:

    default     PyTorch's stager, which copies all tensors before async_save returns
    snapshot    hugekit.torch.SnapshotStager, which takes a snapshot, and copies while training goes on

What counts is the longest step from the call on, which is part of the first one, until the checkpoint is complete. Each
checkpoint is loaded again and compared with the tensors as they were; steps stand still meanwhile and are not counted.
"""

import argparse
import statistics
import tempfile
import time
import warnings

try:
    import torch
    import torch.distributed.checkpoint as dcp
except ImportError as missing:
    raise SystemExit(f"no PyTorch here ({missing}): pip install hugekit[torch]")

from hugekit.torch import SnapshotStager

WAYS = ("default", "snapshot")


class Training:
    """Tensors, and a step that changes some of them."""

    def __init__(self, options):
        self.options = options
        rows = max(1, int(options.gigabytes * (1 << 30)) // (options.tensors * 4096))
        self.tensors = {f"layer{number}": torch.full((rows, 1024), float(number)) for number in range(options.tensors)}
        self.expected = {name: tensor.clone() for name, tensor in self.tensors.items()}
        self.block = max(1, min(rows, int(options.touched * (1 << 20)) // 4096))
        self.gradient = torch.randn(self.block, 1024)
        self.stager = SnapshotStager()
        self.number = 0
        # What both stagers copy to was used before: a host takes its time to give a virtual machine memory.
        del [tensor.clone() for tensor in self.tensors.values()][:]

    def step(self):
        """Updates one block of one tensor; another one with each step."""
        tensor = list(self.tensors.values())[self.number % len(self.tensors)]
        first = self.number * 7919 % max(1, len(tensor) // self.block) * self.block
        part = tensor[first : first + self.block]
        part.mul_(0.999).add_(self.gradient[: len(part)])
        self.number += 1

    def save(self, way, folder):
        if way == "snapshot":
            saving = dcp.async_save(self.tensors, checkpoint_id=folder, async_stager=self.stager, no_dist=True)
            return saving.upload_completion
        return dcp.async_save(self.tensors, checkpoint_id=folder, no_dist=True)

    def run(self, way, folder):
        """Seconds of each step from the save on, of the call itself, and until the checkpoint was complete."""
        for name, tensor in self.tensors.items():
            self.expected[name].copy_(tensor)
        for _ in range(self.options.steps):
            self.step()
        for name, tensor in self.tensors.items():
            self.expected[name].copy_(tensor)
        start = time.perf_counter()
        saving = self.save(way, folder)
        call = time.perf_counter() - start
        self.step()
        steps = [time.perf_counter() - start]
        while not saving.done():
            before = time.perf_counter()
            self.step()
            steps.append(time.perf_counter() - before)
        took = time.perf_counter() - start
        saving.result()
        self.verify(folder)
        return steps, call, took

    def verify(self, folder):
        found = {name: torch.empty_like(tensor) for name, tensor in self.expected.items()}
        dcp.load(found, checkpoint_id=folder, no_dist=True)
        for name, tensor in self.expected.items():
            if not torch.equal(found[name].view(torch.int32), tensor.view(torch.int32)):
                raise SystemExit(f"{folder}: {name} is not what it was")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=4, help="of all tensors, in GiB")
    parser.add_argument("--tensors", type=int, default=16)
    parser.add_argument("--touched", type=float, default=4, help="MiB that a step updates")
    parser.add_argument("--steps", type=int, default=50, help="before each checkpoint")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", help="where checkpoints are written and removed again")
    options = parser.parse_args()
    warnings.filterwarnings("ignore", message="torch.distributed is disabled")
    warnings.filterwarnings("ignore", message="TypedStorage is deprecated")
    training = Training(options)
    runs = {way: [] for way in WAYS}
    for number in range(options.rounds):
        for way in WAYS if number % 2 == 0 else reversed(WAYS):
            with tempfile.TemporaryDirectory(dir=options.folder) as folder:
                runs[way].append(training.run(way, folder))
    training.stager.close()
    print(f"{'way':10} {'call':>10} {'longest step':>13} {'median step':>12} {'complete after':>15} {'steps meanwhile':>16}")
    for way in WAYS:
        call = statistics.median(run[1] for run in runs[way])
        longest = statistics.median(max(run[0]) for run in runs[way])
        median = statistics.median(step for run in runs[way] for step in run[0][1:] or run[0])
        took = statistics.median(run[2] for run in runs[way])
        steps = statistics.median(len(run[0]) for run in runs[way])
        print(
            f"{way:10} {call * 1e3:7.1f} ms {longest * 1e3:10.1f} ms {median * 1e3:9.2f} ms {took:13.2f} s {steps:16.0f}"
        )
    ratios = [max(slow[0]) / max(fast[0]) for slow, fast in zip(runs["default"], runs["snapshot"])]
    print(
        f"longest step, default / snapshot: {statistics.median(ratios):.1f} "
        f"({min(ratios):.1f} to {max(ratios):.1f} in {len(ratios)} rounds)"
    )
    print("all checkpoints hold the tensors as they were, byte for byte")


if __name__ == "__main__":
    main()
