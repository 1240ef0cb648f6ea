"""Refuses interpreters in which the extension module does not work, before it and numpy are loaded there."""

from __future__ import annotations

import importlib


def _is_main() -> bool:
    """Whether this is the main interpreter; where Python has no module that tells, it is taken to be."""
    # Up to 3.12, and since 3.13.
    for name in ("_interpreters", "_xxsubinterpreters"):
        try:
            interpreters = importlib.import_module(name)
        except ImportError:
            continue
        return bool(interpreters.get_current() == interpreters.get_main())
    return True


# PyO3 remembers the first interpreter that loads a module of its, and refuses all others from then on, the main one too.
if not _is_main():
    raise ImportError(
        "hugekit cannot be imported in a subinterpreter: its extension module is built with PyO3, whose modules work in "
        "one interpreter of a process. Import it in the main interpreter: under mod_wsgi by WSGIApplicationGroup "
        "%{GLOBAL}, and with ThreadPoolExecutor or ProcessPoolExecutor instead of InterpreterPoolExecutor"
    )
