"""`scripts/opinfo`: run OpInfo cases into a progress file, or merge progress files into a result."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console
from rich.progress import Progress

from benchmarks.result import commit, environment
from opinfo import cases, pool, summary
from opinfo.verdict import Row
from opinfo.worker import Settings


def main(argv: list[str] | None = None) -> int:
    """Exit status 1 where a case failed or crashed."""
    parser = _parser()
    options = parser.parse_args(argv)
    if options.summary:
        return _summarise(options.summary, options.out)
    if unknown := sorted(set(options.ops or ()) - set(cases.ops())):
        parser.error(f"op_db has no {', '.join(unknown)}; its names are such as add, linalg.inv, nn.functional.conv2d")
    out = options.out or Path(
        f"build/opinfo/{options.device}-{options.plan}-{options.shard[0]}of{options.shard[1]}.jsonl"
    )
    _run(options, out)
    return _summarise([out], None)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/opinfo", description=__doc__)
    add = parser.add_argument
    add("--device", default="cpu", help="cpu or cuda")
    add("--ops", nargs="+", metavar="NAME", help="only these ops (default: all of op_db)")
    add("--dtypes", nargs="+", choices=cases.DTYPES, default=list(cases.DTYPES))
    add("--samples", type=int, default=5, help="the first so many samples of each op and dtype")
    add(
        "--backend",
        default="fuseplan",
        help="what to test; `aot_eager` tests the tester, `written` runs every graph from its JSON, `carved` carves every second op out of it",
    )
    add("--plan", default="aten", help="fuseplan's plan")
    add("--both", action="store_true", help="run aot_eager for passing cases too")
    add("--sample", type=int, metavar="N", help="a fixed sample instead: one case of each of N dtypes of every op")
    add("--shard", type=_shard, default=(1, 1), metavar="I/N", help="only the I-th of N parts (from 1)")
    add("--workers", type=int, default=1, help="processes that run cases")
    add("--timeout", type=float, default=120.0, help="seconds for one way of running one case")
    add("--resume", action="store_true", help="go on with the progress file, if there is one")
    add("--out", type=Path, help="the progress file, or with --summary the result file")
    add("--summary", nargs="+", type=Path, metavar="FILE", help="merge these progress files into a result")
    return parser


def _shard(text: str) -> tuple[int, int]:
    index, count = (int(part) for part in text.split("/"))
    if not 1 <= index <= count:
        raise argparse.ArgumentTypeError(f"{text}: the part must lie between 1 and the number of parts")
    return index, count


def _run(options: argparse.Namespace, out: Path) -> None:
    settings = Settings(options.device, options.samples, options.backend, options.plan, options.both)
    done = _resumed(out, settings) if options.resume and out.exists() else frozenset()
    job = pool.Job(_groups(options), settings, 1 if options.sample else None, done, options.timeout, options.workers)
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("a" if options.resume else "w", buffering=1) as file, Progress(console=Console(stderr=True)) as bar:
        _write_line(file, {"run": _header(settings)})
        task, seen = bar.add_task("groups", total=len(job.groups)), set[str]()

        def emit(row: Row) -> None:
            _write_line(file, asdict(row))
            seen.add(f"{row.op}|{row.dtype}")
            bar.update(task, completed=len(seen), description=f"{row.op} {row.dtype}")

        pool.run(job, emit)


def _groups(options: argparse.Namespace) -> tuple[cases.Group, ...]:
    found = cases.groups(options.device, options.ops, options.dtypes)
    if options.sample:
        found = cases.sample_groups(found, options.sample)
    index, count = options.shard
    return tuple(found[index - 1 :: count])


def _header(settings: Settings) -> dict[str, Any]:
    return {
        "command": " ".join(["scripts/opinfo", *sys.argv[1:]]),
        "settings": asdict(settings),
        "commit": commit(),
        "environment": environment(),
    }


def _resumed(out: Path, settings: Settings) -> frozenset[str]:
    """The keys that the file answers already; a half-written last line is cut off."""
    headers, rows = summary.read(out)
    if any(header["settings"] != asdict(settings) for header in headers):
        raise SystemExit(f"{out} was written with other settings: name another file with --out, or leave out --resume")
    text = out.read_text()
    out.write_text(text[: text.rfind("\n") + 1])
    return frozenset(pool.case_of(row).key for row in rows)


def _write_line(file: TextIO, told: dict[str, Any]) -> None:
    file.write(json.dumps(told) + "\n")


def _summarise(files: list[Path], out: Path | None) -> int:
    parts = [summary.read(path) for path in files]
    told = summary.result([header for part in parts for header in part[0]], [row for part in parts for row in part[1]])
    if out is not None:
        summary.write(told, out)
    summary.show(told, Console())
    return 1 if told["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
