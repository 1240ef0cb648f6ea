"""How long it takes to get pinned memory for copies from and to a GPU, in four ways.

    pip install hugekit[torch]
    python pinned.py [--gibibytes 16 64] [--rounds 3] [--threads 8]

The ways take turns, and each round begins with memory that the kernel has:

    cudaHostAlloc     torch.empty(n, pin_memory=True)
    touch, register   torch.empty(n), whose pages threads touch in parallel; then one cudaHostRegister
    pinned            hugekit.torch.pinned(n), which populates its memory
    pool, pinned      the same of a hugekit.Pool that was populated before, which is not counted

Each one prints the seconds until it is pinned, the seconds of a copy of all of it to the GPU and back, if the GPU has
room, and the seconds until it is free again. Only the memory of the last two is zeroed for the program.
"""

import argparse
import concurrent.futures
import os
import statistics
import time

try:
    import torch
except ImportError as missing:
    raise SystemExit(f"no PyTorch here ({missing}): pip install hugekit[torch]")

import hugekit
from hugekit.torch import pinned

PAGE = 4096
# cudaHostRegisterPortable
PORTABLE = 1


def host_alloc(nbytes, _options, _pool):
    tensor = torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
    yield tensor
    del tensor
    # PyTorch would keep it for the next tensor.
    torch._C._host_emptyCache()


def touch_and_register(nbytes, options, _pool):
    tensor = torch.empty(nbytes, dtype=torch.uint8)
    part = -(-nbytes // options.threads // PAGE) * PAGE
    with concurrent.futures.ThreadPoolExecutor(options.threads) as executor:
        list(executor.map(lambda first: tensor[first : first + part : PAGE].fill_(0), range(0, nbytes, part)))
    cudart = torch.cuda.cudart()
    error = cudart.cudaHostRegister(tensor.data_ptr(), nbytes, PORTABLE)
    assert not int(error), f"CUDA did not pin {nbytes} bytes: {cudart.cudaGetErrorString(error)}"
    yield tensor
    cudart.cudaHostUnregister(tensor.data_ptr())


def of_hugekit(nbytes, options, pool):
    tensor = pinned(nbytes, dtype=torch.uint8, pool=pool, threads=options.threads)
    yield tensor
    del tensor
    hugekit.trim()


WAYS = {
    "cudaHostAlloc": (host_alloc, False),
    "touch, register": (touch_and_register, False),
    "pinned": (of_hugekit, False),
    "pool, pinned": (of_hugekit, True),
}


def measured(way, nbytes, options):
    """Seconds until it is pinned, of a copy to the GPU and back, and until it is free."""
    make, has_pool = WAYS[way]
    pool = hugekit.Pool(nbytes, threads=options.threads) if has_pool else None
    steps = make(nbytes, options, pool)
    start = time.perf_counter()
    tensor = next(steps)
    made = time.perf_counter() - start
    assert tensor.is_pinned() and tensor.nbytes == nbytes
    copied = copies(tensor)
    start = time.perf_counter()
    del tensor
    assert next(steps, None) is None
    return made, copied, time.perf_counter() - start


def copies(tensor):
    """Seconds of a copy to the GPU and back; None if the GPU has no room."""
    free, _ = torch.cuda.mem_get_info()
    if free < tensor.nbytes + (1 << 30):
        return None
    there = torch.empty_like(tensor, device="cuda")
    torch.cuda.synchronize()
    start = time.perf_counter()
    there.copy_(tensor, non_blocking=True)
    tensor.copy_(there, non_blocking=True)
    torch.cuda.synchronize()
    took = time.perf_counter() - start
    del there
    torch.cuda.empty_cache()
    return took


def shown(seconds):
    if None in seconds:
        return "no room"
    return f"{statistics.median(seconds):.3f} ({min(seconds):.3f}-{max(seconds):.3f})"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gibibytes", type=float, nargs="+", default=[16, 64])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()
    if not torch.cuda.is_available():
        return print("no GPU was found: torch.cuda.is_available() is False, so nothing was measured")
    print(f"GPU: {torch.cuda.get_device_name()}; {options.threads} threads; medians of {options.rounds} rounds (range), in seconds")
    torch.cuda.synchronize()
    for gibibytes in options.gibibytes:
        nbytes = int(gibibytes * (1 << 30)) // PAGE * PAGE
        rounds = [{way: measured(way, nbytes, options) for way in WAYS} for _ in range(options.rounds)]
        print(f"\n{gibibytes} GiB           pinned after         copied to and from   free after")
        for way in WAYS:
            print(f"  {way:<16}", *(f"{shown(seconds):<20}" for seconds in zip(*(times[way] for times in rounds))))


main()
