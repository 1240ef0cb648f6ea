"""The examples run, on little memory; what they measure there says nothing."""

import pathlib
import subprocess
import sys

import pytest

EXAMPLES = pathlib.Path(__file__).parents[1] / "examples"


@pytest.mark.parametrize(
    "command, says",
    [
        (["checkpoint.py", "--gigabytes", "0.03", "--rounds", "2", "--steps", "5"], "byte for byte"),
        (["checkpoint.py", "--gigabytes", "0.03", "--rounds", "1", "--steps", "5", "--arrays", "3"], "byte for byte"),
        (["deltas.py", "--gigabytes", "0.03", "--rounds", "2", "--arrays", "2"], "holds the arrays as they were"),
        (["async_save.py", "--gigabytes", "0.03", "--rounds", "2", "--reserve", "8"], "byte for byte"),
        (["pinned.py", "--gibibytes", "0.03", "--rounds", "1"], "GPU"),
        (["clones.py", "--clones", "3"], "the image is as it was"),
        (["clones.py", "/proc/self/exe", "--clones", "1"], "the image is as it was"),
        (["compare.py", "--mebibytes", "8", "--rounds", "2", "--backing", "base"], "one call for 64 bytes"),
    ],
)
def test_example(command, says, serves, tmp_path):
    if command[0] in ("async_save.py", "pinned.py"):
        pytest.importorskip("torch", reason="torch is not installed: pip install hugekit[torch]")
    command = [sys.executable, EXAMPLES / command[0], *command[1:]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert done.returncode == 0 and says in done.stdout, done.stdout + done.stderr
