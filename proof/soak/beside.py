#!/usr/bin/env python3
"""The soak with a tender, a broker with hostile clients and a chain of deltas beside it.

    cargo build --release -p hugekit-soak -p hugekit-cli
    cargo build --release -p hugekit-delta --example key_value
    python3 proof/soak/beside.py --minutes 30 target/release

Ends with 0 if the soak found no difference, each honest client of the broker was served, and each restart of the
store had all that was saved.
"""

import argparse
import os
import pathlib
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time

STOP = threading.Event()
FAULTS: list[str] = []
COUNTS = {"leases": 0, "hostile": 0, "restarts": 0, "passes": 0}


def beside(step):
    """Runs a step again and again; the first exception of it is a fault."""

    def run(*arguments):
        while not STOP.is_set():
            try:
                step(*arguments)
            except Exception as error:  # noqa: BLE001
                FAULTS.append(f"{step.__name__}: {error!r}")
                return

    return run


@beside
def hostile_client(path):
    """Connects, and lies, floods, is silent or leaves."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
        client.settimeout(5)
        try:
            client.connect(path)
            for _ in range(random.randrange(20)):
                client.send(random.randbytes(random.choice([0, 1, 8, 24, 40, 4096])))
            if random.random() < 0.3:
                time.sleep(random.random() * 3)
            if random.random() < 0.5:
                client.recv(4096)
        except OSError:
            pass
    COUNTS["hostile"] += 1


@beside
def honest_client(command, path):
    """Takes a lease, and looks at all of it."""
    look = "import sys;data=open(sys.argv[1],'rb').read();sys.exit(any(data) or len(data)!=16<<20)"
    lease = [command, "lease", "--socket", path, "--size", "16MiB", "--wait", "60", "--"]
    ended = subprocess.run([*lease, sys.executable, "-c", look, "{}"], capture_output=True, timeout=120)
    if ended.returncode:
        raise RuntimeError(ended.stderr.decode())
    COUNTS["leases"] += 1
    time.sleep(1)


class Store:
    """A key-value store that is killed, and has what was saved when it starts again."""

    def __init__(self, program, folder):
        self.program, self.folder, self.saved = program, folder, {}

    def start(self):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        return subprocess.Popen([self.program, self.folder, "64"], **pipes)


def ask(process, command):
    process.stdin.write(command + "\n")
    process.stdin.flush()
    return process.stdout.readline().rstrip("\n")


@beside
def chain(store):
    process = store.start()
    try:
        for key, value in random.sample(sorted(store.saved.items()), min(200, len(store.saved))):
            if ask(process, f"get {key}") != f"= {value}":
                raise RuntimeError(f"{key} is not what was saved")
        for _ in range(random.randrange(1, 5)):
            fresh = {random.randrange(3000): random.randbytes(random.randrange(1, 4500)).hex() for _ in range(300)}
            for key, value in fresh.items():
                if (answer := ask(process, f"set {key} {value}")) != "ok":
                    raise RuntimeError(answer)
            ask(process, "save")
            if not (answer := ask(process, "wait")).startswith("saved "):
                raise RuntimeError(answer)
            store.saved.update(fresh)
    finally:
        process.kill()
        process.communicate()
    COUNTS["restarts"] += 1


def start(step, *arguments):
    thread = threading.Thread(target=step, args=arguments, daemon=True)
    thread.start()
    return thread


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("programs", type=pathlib.Path, help="the folder of hugekit, hugekit-soak and examples/key_value")
    options = parser.parse_args()
    names = ("hugekit", "hugekit-soak", "examples/key_value")
    command, soak, key_value = (str(options.programs / name) for name in names)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "broker")
        broker = subprocess.Popen(
            [command, "broker", "--unit", "16MiB", "--ready", "2", "--backing", "base", "--socket", path],
            stderr=subprocess.DEVNULL,
        )
        soaking = subprocess.Popen([soak, "--minutes", str(options.minutes)])
        tender = subprocess.Popen([command, "tend", "--name", "hugekit-soak"], stdout=subprocess.DEVNULL)
        store = Store(key_value, tempfile.mkdtemp(dir=folder))
        while not os.path.exists(path):
            time.sleep(0.1)
        threads = [start(hostile_client, path) for _ in range(4)]
        threads += [start(honest_client, command, path), start(chain, store)]
        status = soaking.wait()
        for program, name in ((broker, "broker"), (tender, "tender")):
            if program.poll() is not None:
                FAULTS.append(f"the {name} ended: {program.returncode}")
        STOP.set()
        for thread in threads:
            thread.join(150)
        for program in (broker, tender):
            program.terminate()
            program.wait(10)
    print(", ".join(f"{count} {what}" for what, count in COUNTS.items() if count))
    print(*FAULTS, sep="\n")
    return status or bool(FAULTS)


if __name__ == "__main__":
    sys.exit(main())
