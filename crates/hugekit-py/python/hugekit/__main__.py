"""``python -m hugekit``: what this machine offers, and a demonstration."""

from __future__ import annotations

import argparse
import json
import sys

import hugekit

from . import _demo, _report


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m hugekit", description="Huge-page memory for Python on Linux.")
    parser.add_argument("--version", action="version", version=f"hugekit {hugekit.__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    doctor = commands.add_parser(
        "doctor",
        help="what this machine offers, and the remedy for what it does not",
        description="Say what this machine offers, and the remedy for what it does not. Nothing is changed.",
    )
    doctor.add_argument("--json", action="store_true", help="print JSON and nothing else")
    doctor.set_defaults(run=_doctor)

    demo = commands.add_parser("demo", help="a demonstration on this machine", description="Demonstrations.")
    demos = demo.add_subparsers(required=True, metavar="NAME")
    checkpoint = demos.add_parser(
        "checkpoint",
        help="three ways to save arrays while a training loop runs, in about ten seconds",
        description=_demo.CHECKPOINT,
    )
    checkpoint.add_argument("--megabytes", type=_positive, help="of arrays; an eighth of what is free, up to 256, if not said")
    checkpoint.add_argument("--seconds", type=float, default=10.0, help="rounds are made for so long, at least one (10)")
    checkpoint.add_argument("--folder", help="where files are written, and removed; that of temporary files if not said")
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
