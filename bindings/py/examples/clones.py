"""Clones that share one image: a memory file is loaded once, and each clone writes memory of its own.

    python clones.py memory.bin --clones 4

Without a file it makes one of 64 MiB.
"""

import argparse
import os
import tempfile

import hugekit


def clone(image, number, length):
    """Runs in a process of its own, whose writes no other process sees."""
    memory = image.map()
    before = bytes(memory[:8])
    memory[:length] = bytes([number]) * length
    print(f"clone {number}: was {before.hex()}, is {bytes(memory[:8]).hex()}", flush=True)


def run_clones(image, count, length):
    children = []
    for number in range(1, count + 1):
        child = os.fork()
        if child == 0:
            try:
                clone(image, number, length)
                os._exit(0)
            finally:
                os._exit(1)
        children.append(child)
    statuses = [os.waitpid(child, 0)[1] for child in children]
    return not any(statuses)


def load(path):
    if path:
        return hugekit.Image.load(path)
    with tempfile.NamedTemporaryFile() as file:
        file.write(os.urandom(1 << 20) * 64)
        file.flush()
        return hugekit.Image.load(file.name)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", nargs="?", help="a memory file")
    parser.add_argument("--clones", type=int, default=4)
    arguments = parser.parse_args()
    image = load(arguments.path)
    print(f"{image.nbytes >> 20} MiB, {image.huge_bytes >> 20} MiB on huge pages: {image.path}")
    before = bytes(image.map()[:8])
    assert run_clones(image, arguments.clones, min(image.nbytes, 4096)), "a clone failed"
    assert bytes(image.map()[:8]) == before
    print("the image is as it was")


if __name__ == "__main__":
    main()
