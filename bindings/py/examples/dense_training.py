"""A dense model on the CPU, trained by Adam, which writes all of its state in each step, and saved in several ways.

    pip install hugekit[torch]
    python dense_training.py [--millions 105] [--rounds 6] [--ranks 2]

Each run is a process of its own, for its peak of memory. The ways take turns, in an order that changes each round:

    none          no checkpoint
    default       torch.distributed.checkpoint.async_save with PyTorch's stager
    staged        the same with hugekit.torch.SnapshotStager
    deltas        hugekit.Checkpointer, which a thread writes
    torch.save    in the loop

What counts is the longest step, the call of the save included, and the peak of resident memory. The last checkpoint of a
run is compared with the state of its step, for all ways but "none".
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import warnings

try:
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
except ImportError as missing:
    raise SystemExit(f"no PyTorch here ({missing}): pip install hugekit[torch]")

WAYS = ("none", "default", "staged", "deltas", "torch.save")


class Block(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.grow = torch.nn.Linear(width, 4 * width)
        self.shrink = torch.nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.shrink(torch.nn.functional.gelu(self.grow(self.norm(x))))


def model_of(millions, width=768):
    """Blocks as of a transformer, with the embeddings that make them as many parameters."""
    layers = max(1, round(millions * 1e6 * 0.63 / (8 * width * width)))
    words = max(64, round(millions * 1e6 * 0.37 / width))
    return torch.nn.ModuleDict(
        {"words": torch.nn.Embedding(words, width), "blocks": torch.nn.Sequential(*[Block(width) for _ in range(layers)])}
    )


class Training:
    def __init__(self, options):
        torch.manual_seed(1)
        torch.set_num_threads(1)
        self.model = model_of(options.millions)
        self.words = self.model["words"].num_embeddings
        self.trained = self.model
        if options.ranks > 1:
            self.trained = torch.nn.parallel.DistributedDataParallel(_Whole(self.model))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-4, fused=True)

    def step(self):
        tokens = torch.randint(0, self.words, (16,))
        self.optimizer.zero_grad(set_to_none=True)
        if self.trained is self.model:
            loss = self.model["blocks"](self.model["words"](tokens)).pow(2).mean()
        else:
            loss = self.trained(tokens)
        loss.backward()
        self.optimizer.step()

    def state(self):
        # The moments by the names of their parameters: async_save wants nested dicts of tensors.
        names = {id(parameter): name for name, parameter in self.model.named_parameters()}
        moments = {names[id(parameter)]: dict(state) for parameter, state in self.optimizer.state.items()}
        return {"model": self.model.state_dict(), "optimizer": moments}

    def sums(self):
        """A number for each tensor, which no other state has."""
        return [int(leaf.view(torch.int32).long().sum()) for leaf in leaves(self.state()) if leaf.dtype == torch.float32 and leaf.dim()]


class _Whole(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, tokens):
        return self.model["blocks"](self.model["words"](tokens)).pow(2).mean()


def leaves(tree):
    if isinstance(tree, torch.Tensor):
        return [tree]
    return [leaf for value in tree.values() for leaf in leaves(value)]


def savers(way, options):
    """A function that saves and returns something that waits, a function that ends, and one that loads into a state."""
    no_dist = options.ranks == 1
    if way in ("default", "staged"):
        stager = None
        if way == "staged":
            from hugekit.torch import SnapshotStager

            stager = SnapshotStager()

        def save(training, path):
            extra = {"async_stager": stager} if stager else {}
            saving = dcp.async_save(training.state(), checkpoint_id=path, no_dist=no_dist, **extra)
            return (saving.upload_completion if stager else saving).result

        def load(path, state):
            dcp.load(state, checkpoint_id=path, no_dist=no_dist)

        return save, (stager.close if stager else lambda: None), load
    if way == "deltas":
        import hugekit

        chains = {}

        def save(training, path):
            if "one" not in chains:
                chains["one"], chains["paths"] = hugekit.Checkpointer(training.state), []
            chains["paths"].append(path)
            return chains["one"].save(path, wait=False).wait

        def load(path, state):
            hugekit.restore(chains["paths"], state)

        return save, lambda: chains["one"].close(), load
    if way == "torch.save":

        def save(training, path):
            torch.save(training.state(), path)
            return lambda: None

        return save, lambda: None, lambda path, state: None
    return (lambda training, path: lambda: None), lambda: None, None


def run(options):
    warnings.simplefilter("ignore")
    rank = int(os.environ.get("RANK", 0))
    if options.ranks > 1:
        dist.init_process_group("gloo")
    training = Training(options)
    save, end, load = savers(options.run, options)
    steps, calls, waiting, sums, last = [], [], None, None, None
    for number in range(1, options.steps + 1):
        began = time.perf_counter()
        training.step()
        if number % options.every == 0 and options.run != "none":
            if waiting is not None:
                waiting()
            called = time.perf_counter()
            last = os.path.join(options.folder, f"{number}" if options.ranks == 1 or options.run in ("default", "staged") else f"{number}-{rank}")
            waiting = save(training, last)
            calls.append(time.perf_counter() - called)
            checked = time.perf_counter()
            sums = training.sums() if options.verify else None
            began += time.perf_counter() - checked
        steps.append(time.perf_counter() - began)
    if waiting is not None:
        waiting()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    right = None
    if options.verify and options.run in ("default", "staged", "deltas"):
        with torch.no_grad():
            state = training.state()
            for leaf in leaves(state):
                leaf.zero_() if leaf.is_floating_point() else None
            load(last, state)
        right = training.sums() == sums
    if options.run != "none":
        end()
    if rank == 0:
        warm = steps[2:]
        print(json.dumps({"longest": max(warm), "median": statistics.median(warm), "calls": calls, "peak": peak, "right": right, "total": sum(steps)}))
    if options.ranks > 1:
        dist.destroy_process_group()


def started(way, options):
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        arguments = [f"--{name}={getattr(options, name)}" for name in ("millions", "steps", "every", "ranks")]
        command = [sys.executable, os.path.abspath(__file__), f"--run={way}", f"--folder={folder}", *arguments]
        if options.verify:
            command.append("--verify")
        places = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(29500 + os.getpid() % 1000), "WORLD_SIZE": str(options.ranks)}
        ranks = [
            subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, **places, "RANK": str(rank)}, text=True)
            for rank in range(options.ranks)
        ]
        texts = [rank.communicate()[0] for rank in ranks]
        if any(rank.returncode for rank in ranks):
            raise SystemExit(f"{way}: a process failed")
        return json.loads(texts[0])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--millions", type=float, default=105, help="of parameters; the state has 12 bytes for each")
    parser.add_argument("--steps", type=int, default=42)
    parser.add_argument("--every", type=int, default=20, help="steps between two saves")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--ranks", type=int, default=1, help="processes that train together, by gloo")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--verify", action="store_true", help="compare the last checkpoint; not while you measure")
    parser.add_argument("--folder", help="where checkpoints are written and removed again")
    parser.add_argument("--run", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        run(options)
        return
    ways = options.ways.split(",")
    runs = {way: [] for way in ways}
    for number in range(options.rounds):
        for way in ways[number % len(ways) :] + ways[: number % len(ways)]:
            runs[way].append(started(way, options))
    if options.verify:
        wrong = [way for way in ways if any(run["right"] is False for run in runs[way])]
        print("wrong: " + ", ".join(wrong) if wrong else "the checkpoints hold what was saved")
    print(f"{'way':12}{'longest step, s':>24}{'calls, s':>24}{'median step, s':>16}{'peak, MiB':>20}")
    for way in ways:
        of = lambda values: f"{statistics.median(values):.2f} ({min(values):.2f}-{max(values):.2f})"  # noqa: E731
        calls = [call for one in runs[way] for call in one["calls"]]
        peaks = [one["peak"] for one in runs[way]]
        print(
            f"{way:12}{of([one['longest'] for one in runs[way]]):>24}{of(calls) if calls else '-':>24}"
            f"{statistics.median(one['median'] for one in runs[way]):>16.3f}"
            f"{f'{statistics.median(peaks):.0f} ({min(peaks)}-{max(peaks)})':>20}"
        )


if __name__ == "__main__":
    main()
