#!/usr/bin/env python3
"""The soak with a tender, a broker with hostile clients and a chain of deltas beside it.

    cargo build --release -p hugekit-soak -p hugekit-cli -p kv_store
    python3 proof/soak/beside.py --minutes 30 target/release

Ends with 0 if the soak found no difference, each honest client of the broker was served, and each restart of the
server had all that was saved.
"""

import argparse
import os
import pathlib
import random
import signal
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


def ask(server, *words):
    request = b"*%d\r\n" % len(words)
    request += b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)
    server.sendall(request)
    reply = server.makefile("rb")
    line = reply.readline()
    if line[:1] == b"$" and line[1:2] != b"-":
        return reply.read(int(line[1:]) + 2)[:-2]
    return line.strip()


class Server:
    """A key-value server that is killed, and has what was saved when it starts again."""

    def __init__(self, program, folder):
        self.program, self.folder, self.saved = program, folder, {}

    def start(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        options = ["--port", str(port), "--dir", self.folder, "--memory", "64MiB"]
        process = subprocess.Popen([self.program, *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until = time.monotonic() + 120
        while True:
            try:
                return process, socket.create_connection(("127.0.0.1", port), 60)
            except OSError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.1)


@beside
def chain(server):
    process, client = server.start()
    try:
        for key, value in random.sample(sorted(server.saved.items()), min(200, len(server.saved))):
            if ask(client, b"GET", key) != value:
                raise RuntimeError(f"{key!r} is not what was saved")
        for _ in range(random.randrange(1, 5)):
            fresh = {b"%d" % random.randrange(3000): random.randbytes(random.randrange(1, 9000)) for _ in range(300)}
            for key, value in fresh.items():
                if ask(client, b"SET", key, value) != b"+OK":
                    raise RuntimeError("SET was refused")
            if ask(client, b"SAVE") != b"+OK":
                raise RuntimeError("SAVE was refused")
            server.saved.update(fresh)
        client.close()
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    COUNTS["restarts"] += 1


def start(step, *arguments):
    thread = threading.Thread(target=step, args=arguments, daemon=True)
    thread.start()
    return thread


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("programs", type=pathlib.Path, help="the folder of hugekit, hugekit-soak and kv_store")
    options = parser.parse_args()
    command, soak, kv_store = (str(options.programs / name) for name in ("hugekit", "hugekit-soak", "kv_store"))
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "broker")
        broker = subprocess.Popen(
            [command, "broker", "--unit", "16MiB", "--ready", "2", "--backing", "base", "--socket", path],
            stderr=subprocess.DEVNULL,
        )
        soaking = subprocess.Popen([soak, "--minutes", str(options.minutes)])
        tender = subprocess.Popen([command, "tend", "--name", "hugekit-soak"], stdout=subprocess.DEVNULL)
        server = Server(kv_store, tempfile.mkdtemp(dir=folder))
        while not os.path.exists(path):
            time.sleep(0.1)
        threads = [start(hostile_client, path) for _ in range(4)]
        threads += [start(honest_client, command, path), start(chain, server)]
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
