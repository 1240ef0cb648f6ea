"""``python -m hugekit``: each command in a process of its own."""

import json
import subprocess
import sys

import hugekit


def run(*arguments):
    command = [sys.executable, "-m", "hugekit", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_doctor_prints_every_line_of_the_report_within_the_columns():
    done = run("doctor")
    assert done.returncode == 0, done.stderr
    for line in json.loads(run("doctor", "--json").stdout)["lines"]:
        assert line["topic"] in done.stdout.splitlines()
        assert f"  {line['verdict']:8}{line['name']}" in done.stdout
        # What was measured may have changed in between.
        assert line["remedy"] is None or f"    > {line['remedy']}\n" in done.stdout
    plain = [line for line in done.stdout.splitlines() if not line.startswith("    > ") and "/" not in line]
    assert max(map(len, plain)) <= 80


def test_demo_saves_in_three_ways_and_leaves_nothing(serves, tmp_path):
    done = run("demo", "checkpoint", "--megabytes", "8", "--seconds", "0", "--folder", str(tmp_path))
    assert done.returncode == 0, done.stderr
    rows = [line for line in done.stdout.splitlines() if " ms" in line and " s " in line]
    assert [row.split()[0] for row in rows] == ["numpy.savez:", "copied", "hugekit.snapshot,"], done.stdout
    assert "8 MiB in 8 arrays" in done.stdout and list(tmp_path.iterdir()) == []


def test_a_failure_is_one_line():
    done = run("demo", "checkpoint", "--folder", "/nonexistent", "--seconds", "0", "--megabytes", "1")
    assert done.returncode == 1 and done.stderr.startswith("hugekit: ") and done.stderr.count("\n") == 1
    assert run("demo", "checkpoint", "--megabytes", "0").returncode == 2


def test_help_and_version():
    assert run("--version").stdout == f"hugekit {hugekit.__version__}\n"
    assert "doctor" in run("--help").stdout and "checkpoint" in run("demo", "--help").stdout
