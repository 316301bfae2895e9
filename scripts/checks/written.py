"""The table of docs/written-attention.md: how much of the attention that models write out is found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from checks.project import ROOT
from checks.tables import between, file_of, head, line, on_machine

PAGE = ROOT / "docs" / "written-attention.md"
Rows = Mapping[str, Mapping[str, Any]]
MORE = ("proven", "fused here", "in training")
"""What is told of the attention that is found."""


def pages() -> dict[Path, str]:
    """The page, and what belongs in it."""
    return {PAGE: between(PAGE, "\n\n".join(on_machine(_parts(), file_of("written_attention", "json"))))}


def _parts() -> Iterator[str]:
    found = file_of("written_attention", "json")
    if not found:
        yield "Nothing was measured yet: `scripts/bench written_attention`."
        return
    packages, rows = found["environment"]["packages"], found["results"]
    attending = {name: row for name, row in rows.items() if row.get("attention")}
    versions = ", ".join(f"{name} {packages[name]}" for name in ("torch", "transformers", "timm") if name in packages)
    yield (
        f"Small models with attention written out, on the CPU, in inference, with {versions} (`{found['command']}` at"
        f" {found['commit']}). Attention is counted in their ATen graphs, apart from the finder: softmaxes that come from a"
        " batched product as large as themselves and go into one."
    )
    libraries = list(dict.fromkeys(name.split()[0] for name in attending))
    yield "\n".join([
        *head(["", "models", "attention", "found", "share", "masks proven", "a fused kernel of the CPU takes it", "open to fused kernels in training"]),
        *(_sums(library, {k: v for k, v in attending.items() if k.startswith(library)}) for library in libraries),
        _sums("all", attending),
    ])  # fmt: skip
    yield "What is not found, and why:"
    yield "\n".join([
        *head(["model", "attention", "found", "reasons"]),
        *(_missed(name, row) for name, row in attending.items() if row["found"] < row["attention"]),
    ])  # fmt: skip
    whole = [name for name, row in attending.items() if row["found"] >= row["attention"]]
    yield f"All is found in {', '.join(whole)}."
    failed = [f"{name} ({row['failed']})" for name, row in rows.items() if "failed" in row]
    if failed:
        yield f"Not measured, since they don't build or trace here: {'; '.join(failed)}."


def _sums(name: str, rows: Rows) -> str:
    sums = Counter[str]()
    for row in rows.values():
        sums.update({key: row.get(key, 0) for key in ("attention", "found", *MORE)})
    share = f"{sums['found'] / sums['attention']:.1%}"
    return line([name, str(len(rows)), *(str(sums[key]) for key in ("attention", "found")), share,
                 *(str(sums[key]) for key in MORE)])  # fmt: skip


def _missed(name: str, row: Mapping[str, Any]) -> str:
    reasons = Counter[str]()
    for reason, count in row["missed"].items():
        reasons[_without_names(reason)] += count
    told = "; ".join(f"{count} × {reason}" for reason, count in reasons.items())
    return line([name, str(row["attention"]), str(row["found"]), told])


def _without_names(reason: str) -> str:
    """A reason without the numbered names of nodes, by which equal layers differ."""
    return reason if " is written to by " not in reason else "the scores are written to in part, in place"
