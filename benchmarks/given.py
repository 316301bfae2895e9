"""What a benchmark may be given on the command line, where that is a few numbers or names: each says what in its `--help`."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Sequence


def numbers(benchmark: str, doc: str | None, arguments: Sequence[str], **usual: int) -> tuple[int, ...]:
    """One whole number for each of `usual`, in its order; what is not given is as usual.

    >>> numbers("graph", None, ["3"], runs=9, ops=10_000)
    (3, 10000)
    """
    parser = _parser(benchmark, doc)
    for name, count in usual.items():
        parser.add_argument(name, nargs="?", type=_count, default=count, help=f"{count:,}, if it is not given")
    given = parser.parse_args(arguments)
    return tuple(getattr(given, name) for name in usual)


def names(benchmark: str, doc: str | None, arguments: Sequence[str], known: Collection[str]) -> list[str]:
    """Those of `known` that were named; all, where none was.

    >>> names("planning", None, ["chain"], ["chain", "grid"]), names("planning", None, [], ["chain", "grid"])
    (['chain'], ['chain', 'grid'])
    """
    parser = _parser(benchmark, doc)
    parser.add_argument("name", nargs="*", help=f"of {', '.join(known)}; all, if none is named")
    given: list[str] = parser.parse_args(arguments).name
    for name in given:
        if name not in known:
            parser.error(f"there is no {name!r}: known are {', '.join(known)}")
    return given or list(known)


def nothing(benchmark: str, doc: str | None, arguments: Sequence[str]) -> None:
    """It takes none."""
    _parser(benchmark, doc).parse_args(arguments)


def _parser(benchmark: str, doc: str | None) -> argparse.ArgumentParser:
    return argparse.ArgumentParser(prog=f"scripts/bench {benchmark}", description=doc)


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"it is a whole number above 0, not {text!r}")
    return int(text)
