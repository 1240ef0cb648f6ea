"""``python -m hugekit``: the doctor and a demonstration."""

from __future__ import annotations

import argparse
import json
import sys

import hugekit

from . import _demo, _report


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m hugekit", description="Clears, copies, forks and saves gigabytes of memory on huge pages.")
    parser.add_argument("--version", action="version", version=f"hugekit {hugekit.__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    doctor = commands.add_parser(
        "doctor",
        help="print what this machine supports, and a remedy for everything else",
        description="Print what this machine supports, and a remedy for everything else. Changes nothing.",
    )
    doctor.add_argument("--json", action="store_true", help="print only JSON")
    doctor.set_defaults(run=_doctor)

    demo = commands.add_parser("demo", help="run a demonstration on this machine", description="Demonstrations.")
    demos = demo.add_subparsers(required=True, metavar="NAME")
    checkpoint = demos.add_parser(
        "checkpoint",
        help="compare three ways to save arrays while a training loop runs, in about ten seconds",
        description=_demo.CHECKPOINT,
    )
    checkpoint.add_argument("--megabytes", type=_positive, help="MiB of arrays (default: an eighth of the free memory, at most 256)")
    checkpoint.add_argument("--seconds", type=float, default=10.0, help="seconds of rounds; at least one round is made (default: 10)")
    checkpoint.add_argument("--folder", help="folder for the files, which are removed (default: that of temporary files)")
    checkpoint.set_defaults(run=_checkpoint)
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is less than 1")
    return number


def _doctor(options: argparse.Namespace) -> None:
    report = hugekit.doctor()
    print(json.dumps(report, indent=2) if options.json else _report.text(report["lines"]), end="\n" if options.json else "")


def _checkpoint(options: argparse.Namespace) -> None:
    _demo.checkpoint(options.megabytes, options.seconds, options.folder)


def main() -> int:
    options = _parser().parse_args()
    try:
        options.run(options)
    except (OSError, MemoryError) as error:
        print(f"hugekit: {error}", *getattr(error, "__notes__", ()), sep="\n", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
