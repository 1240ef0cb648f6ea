"""A running VM of stock Firecracker: saved, and forked. No numpy is needed."""

import os
import pathlib
import shutil
import subprocess
import sys

import hugekit
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]


def with_guest(*code):
    """Runs lines with a guest: `pid`, `api`, `folder` and `firecracker` are what they are called."""
    if not (shutil.which("cargo") and (ROOT / "tools/vm/examples/guest.rs").exists()):
        pytest.skip("the guest is built from a checkout, by cargo")
    opening = """
import os, pathlib, signal, sys, hugekit
pid, api, folder, firecracker = int(sys.argv[1]), *sys.argv[2:]
folder = pathlib.Path(folder)
"""
    # As `cargo test` builds it: for one package, cargo would compile everything again.
    build = ["cargo", "build", "--quiet", "--example", "guest", "--target-dir", ROOT / "target"]
    subprocess.run(build, cwd=ROOT, check=True, timeout=1800)
    program = [ROOT / "target/debug/examples/guest", sys.executable, "-c", opening + "\n".join(code)]
    done = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, timeout=1800)
    if done.returncode == 77:
        pytest.skip(done.stdout.removeprefix("SKIP ").strip())
    assert done.returncode == 0, done.stdout + done.stderr


def test_vm_is_saved_and_then_its_changes():
    with_guest(
        "full = hugekit.checkpoint_vm(api, folder / 'full')",
        "assert full['way'] == 'write-protected' and 0 < full['paused_ms'] < full['complete_ms'], full",
        "assert (folder / 'full/memory').stat().st_size == full['memory_bytes'] > full['copied_bytes'] > 0",
        "delta = hugekit.checkpoint_vm(api, folder / 'delta', previous=[folder / 'full'], collapse=False)",
        "assert (folder / 'delta/memory.delta').stat().st_size == delta['delta_bytes'] > 0, delta",
        "assert delta['delta_bytes'] < delta['memory_bytes'] / 4 and (folder / 'delta/vmstate').exists()",
        "try:",
        "    hugekit.checkpoint_vm(api, folder / 'full')",
        "except ValueError as refused:",
        "    assert 'exists' in str(refused) and 'remedy' in refused.__notes__[0]",
        "else:",
        "    raise AssertionError('it was saved twice')",
    )


def test_saved_vm_is_packed_with_its_delta_and_unpacked():
    with_guest(
        "hugekit.checkpoint_vm(api, folder / 'full')",
        "hugekit.checkpoint_vm(api, folder / 'delta', previous=[folder / 'full'])",
        "files = folder / 'full/vmstate', folder / 'full/memory'",
        "packed = hugekit.pack_vm(*files, folder / 'layout', deltas=[folder / 'delta'], tag='v1')",
        "assert len(packed['delta_bytes']) == 1 and packed['digest'].startswith('sha256:'), packed",
        "back = hugekit.unpack_vm(f\"{folder / 'layout'}:v1\", folder / 'back')",
        "assert pathlib.Path(back['state']).read_bytes() == (folder / 'delta/vmstate').read_bytes()",
        "series = hugekit.unpack_vm(folder / 'layout', folder / 'series', keep_deltas=True)",
        "assert pathlib.Path(series['memory'][0]).read_bytes() == (folder / 'full/memory').read_bytes()",
        "delta = (folder / 'delta/memory.delta').read_bytes()",
        "assert pathlib.Path(series['memory'][1]).read_bytes() == delta",
        "(folder / 'layout/index.json').write_text('{}')",
        "try:",
        "    hugekit.unpack_vm(folder / 'layout', folder / 'other')",
        "except ValueError as refused:",
        "    assert 'index.json' in str(refused) and not (folder / 'other').exists()",
        "else:",
        "    raise AssertionError('an index without images was read')",
    )


def test_vm_has_children_which_have_children():
    with_guest(
        "def child(name):",
        "    return {'command': [firecracker, '--api-sock', str(folder / name)], 'api': folder / name}",
        "report = hugekit.fork_vm(api, [child('a'), child('b')])",
        "assert len({child['pid'] for child in report['children']} | {pid}) == 3, report",
        "assert all(child['pid'] == child['program'] for child in report['children'])",
        "deeper = hugekit.fork_vm(folder / 'b', [child('c')], resume=False)",
        "for child in report['children'] + deeper['children']:",
        "    assert os.waitpid(child['program'], os.WNOHANG) == (0, 0)",
        "    os.kill(child['pid'], signal.SIGKILL)",
        "    assert os.waitpid(child['program'], 0)[1] == signal.SIGKILL",
    )


def test_wrong_arguments_are_refused(tmp_path):
    child = {"command": ["x"], "api": tmp_path / "x", "load": [1]}
    with pytest.raises(ValueError, match="load is not an object"):
        hugekit.fork_vm(tmp_path / "none", [child])
    with pytest.raises(TypeError):
        hugekit.checkpoint_vm(tmp_path / "none", tmp_path / "saved", previous="full")
    with pytest.raises((ValueError, TypeError, KeyError)):
        hugekit.fork_vm(tmp_path / "none", [{"api": "x"}])
    with pytest.raises(FileNotFoundError, match="connect to "):
        hugekit.checkpoint_vm(tmp_path / "none", tmp_path / "saved")
    assert not list(tmp_path.iterdir())
