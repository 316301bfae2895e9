"""The models of `models` at other sizes, which a seed draws: what tuning gains there, where nobody has looked before.

The ranges stand in zoo.py. Rows of another seed go: they would be of sizes that somebody has chosen among.
"""

from __future__ import annotations

from benchmarks import models
from benchmarks.harness import Rows
from benchmarks.zoo import drawn

SIDES = ("torch.compile", "eager", "reduce-overhead", "fuseplan")
SEED = 20261130
"""Draws the sizes unless another is given: it is changed after the last change to what tuning decides, before anything is run."""


def measure(arguments: list[str]) -> Rows:
    """Tune and measure each family at the size that the seed gives it."""
    given = models.options("drawn", __doc__, None)
    given.add_argument("--seed", type=int, default=SEED, help=f"draws the sizes; {SEED}, if it is not given")
    given.add_argument("--first", type=int, help="only so many of those that have no time yet")
    chosen = given.parse_args(arguments)
    names = drawn(chosen.seed)
    if strange := [name for name in chosen.only or () if name not in names]:
        raise SystemExit(f"the seed {chosen.seed} does not draw {strange[0]!r}, but {', '.join(names)}")
    rows = Rows(
        "drawn", arguments, lambda found: {
            "seed": chosen.seed, **models.results_of({name: found[name] for name in names if name in found})
        }, keep=chosen.append,
    )  # fmt: skip
    chosen.only = chosen.only or list(names)
    if chosen.first is not None:
        known = {name for name, row in rows.every().items() if "failed" not in row}
        chosen.only = [name for name in chosen.only if name not in known][: chosen.first]
    return models.measured(rows, chosen, SIDES, usual=())
