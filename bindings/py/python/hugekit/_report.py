"""The doctor's report as text, as ``hugekit doctor`` prints it."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

_COLUMNS = 80
_VERDICT_COLUMNS = 8


def text(lines: Sequence[Mapping[str, Any]]) -> str:
    """All lines, below their topics."""
    names = max((len(line["name"]) for line in lines), default=0) + 2
    topics = itertools.groupby(lines, key=lambda line: line["topic"])
    return "\n".join(f"{topic}\n" + "".join(_line(line, names) for line in group) for topic, group in topics)


def _line(line: Mapping[str, Any], names: int) -> str:
    indent = 2 + _VERDICT_COLUMNS + names
    # Paths and commands are never broken.
    wrapped = textwrap.wrap(
        _plain(line["value"]), _COLUMNS - indent, break_long_words=False, break_on_hyphens=False
    )
    value = f"\n{'':{indent}}".join(wrapped)
    said = f"  {line['verdict']:{_VERDICT_COLUMNS}}{line['name']:{names}}{value}".rstrip() + "\n"
    return said + (f"    > {_plain(line['remedy'])}\n" if line["remedy"] else "")


def _plain(said: str) -> str:
    """Without what a terminal would act on: parts of it are read from files."""
    return "".join(letter if letter.isprintable() else "?" for letter in said)
