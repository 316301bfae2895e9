"""Plans: who compiles a program, what of it is written in another way, and what of it others run. Closed-schema JSON; no
code, no path, no torch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fuseplan.errors import PlanError
from fuseplan.executors.known import greedy_names, traits_of
from fuseplan.host.settings import BUNDLES
from fuseplan.plan_format import FORMAT, present_fields
from fuseplan.segment import Region, Segmentation
from fuseplan.wire import codec
from fuseplan.wire.codec import AMONG_OTHERS, UNLESS_DEFAULT, CodecError

HOSTS = ("inductor", "aten", "eager")
"""Who compiles a program: Inductor as one, ATen op by op, or nobody: then the Dynamo graph runs as it is."""
CARVED: Mapping[str, tuple[str, ...]] = {
    "aten": ("inference", "forward", "backward"),
    "inductor": ("inference", "joint"),
}
"""The graphs out of which regions are carved, by host: those that torch has cut, or forward and backward in one."""
SETTINGS = tuple(BUNDLES)
SAVING = ("min-cut", "all")
LAUNCHES = ("plain", "cudagraph")
KERNELS = ("auto", "flash", "cudnn", "efficient", "math", "flex", "split")
_SKIPPING: Mapping[str, tuple[str, ...]] = {"window": ("flash", "flex"), "documents": ("flex",)}
"""Those that can skip what such a mask hides."""
MASK_ENDINGS = ("causal", "unmasked", "window", "documents", "rows", "aligned", "heads")
"""What becomes of the mask: dropped, said to a kernel as a window or as blocks of documents, or laid out anew."""
INPUT_ENDINGS = ("grouped", "packed", "views")
"""What becomes of query, key and value: keys and values that are not repeated, by themselves or with the heads of a group as rows of one
query, and no copies that only lay them out."""
ATTENTION_WAYS = tuple(
    "+".join(filter(None, (kernel, mask, heads, views)))
    for kernel in KERNELS
    for mask in ("", *MASK_ENDINGS)
    for heads in ("", "grouped", "packed")
    for views in ("", "views")
    if (kernel in _SKIPPING[mask] if mask in _SKIPPING else kernel != "flex")
    if heads != "packed" or (mask in ("", "unmasked", "rows", "aligned") and kernel not in ("flex", "split"))
    if kernel != "split" or mask in ("", "unmasked")
)
"""How one site of attention may run: under which kernel; with which mask; with keys and values that are not repeated for
each head of a group, or with these heads as rows of one query; and without copies of query, key and value that only lay them out.
"""
WAYS: Mapping[str, tuple[str, ...]] = {
    "attention": ATTENTION_WAYS,
    "written-attention": ATTENTION_WAYS,
    "matmul": ("padded",),
    "loss": ("padded", "chunked-4", "chunked-8"),
    "embedding": ("rows", "one-hot"),
    "convolution": ("patches",),
    "depthwise": ("triton",),
    "few-rows": ("triton",),
    "siblings": ("merged",),
}
"""The ways of those kinds of rewrite that have a closed set of them. Whether a site has a way is told where it is met."""
_WORD = re.compile(r"[a-z0-9][a-z0-9+=._-]{0,79}")
_DIGEST = re.compile(r"[0-9a-f]{16}")
_SHOWN = 40
"""So many letters of what does not fit are shown."""
_GREEDY = re.compile(r"(\w[\w.+-]{0,79})-greedy")
_SIZE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,40}")


@dataclass(frozen=True)
class Rewrite:
    """A site of the program, by kind and number, and the way in which it is written instead of as it is."""

    kind: str
    site: int
    way: str
    digest: str | None = None
    """Of what the site matched. None in a plan of format 1: its number counts as the first finder of attention counted."""

    def __post_init__(self) -> None:
        if not isinstance(self.kind, str) or not _WORD.fullmatch(self.kind):
            raise PlanError(f"a kind of rewrite is named by a word, not by {self.kind!r}")
        if type(self.site) is not int or self.site < 0:
            raise PlanError(f"a site of {self.kind} is named by its number, not by {self.site!r}")
        if self.kind in WAYS:
            _member(f"{self.kind} way", self.way, WAYS[self.kind])
        elif not isinstance(self.way, str) or not _WORD.fullmatch(self.way) or self.way == "as-is":
            raise PlanError(f"a way to write a site of {self.kind} is a word, and another than as-is; not {self.way!r}")
        if self.digest is not None and not (isinstance(self.digest, str) and _DIGEST.fullmatch(self.digest)):
            raise PlanError(f"the digest of a site is 16 hex digits, not {self.digest!r}")


@dataclass(frozen=True)
class CarveOuts:
    """The regions that others than the host run in one graph of a program, by the role and the key of that graph."""

    role: str  # "inference", "forward", "backward" or "joint"
    graph: str
    segmentation: Segmentation = field(metadata=AMONG_OTHERS)


@codec.prepared
@dataclass(frozen=True)
class Plan:
    """What runs a program. Two plans are equal if all their fields are; printed, a plan evals back to an equal one.

    >>> Plan.named("inductor")
    Plan(host='inductor', rewrites=(), carve_outs=(), saving='min-cut', settings='default', launch='plain', name=None, padded=())
    >>> Plan.from_json(Plan.named("aten").to_json()) == Plan.named("aten")
    True
    """

    host: str
    rewrites: tuple[Rewrite, ...] = ()
    carve_outs: tuple[CarveOuts, ...] = ()
    """A graph without any runs as the host runs it."""
    saving: str = "min-cut"
    """What host `aten` saves for the backward; the other hosts leave that to torch."""
    settings: str = "default"
    """The name of a bundle of Inductor's options."""
    launch: str = "plain"
    name: str | None = None
    """The name of a plan that cannot be written down, since it is made for each graph when that is met: an executor fuses all
    that it takes, in a graph that has no carve-outs."""
    padded: tuple[tuple[str, int, int], ...] = field(default=(), metadata=UNLESS_DEFAULT)
    """The box of sizes, each with its name, least and greatest, whose calls are filled up to the greatest; none where nothing is padded."""

    def __post_init__(self) -> None:
        _member("host", self.host, HOSTS)
        _member("saving policy", self.saving, SAVING)
        _member("settings", self.settings, SETTINGS)
        _member("launch", self.launch, LAUNCHES)
        sites = [(one.kind, one.site) for one in self.rewrites]
        if sites != sorted(set(sites)):
            raise PlanError("the rewrites of a plan name each site at most once, ordered by kind and number")
        if self.host != "inductor" and self.settings != "default":
            raise PlanError(f"settings {self.settings!r} are Inductor's; host {self.host} has none")
        if self.host == "eager" and self.launch != "plain":
            raise PlanError(f"launch {self.launch!r} needs a plan that compiles, and eager does not")
        if self.launch != "plain" and BUNDLES[self.settings].captures:
            raise PlanError(f"mode {self.settings!r} brings CUDA graphs of its own; launch it plain")
        self._check_padded()
        self._check_cuts()

    def _check_padded(self) -> None:
        names = [name for name, _, _ in self.padded]
        if names != sorted(set(names)) or not all(map(_SIZE.fullmatch, names)):
            raise PlanError("the sizes to which a plan pads are named each once, by words, in their order")
        for name, low, high in self.padded:
            if type(low) is not int or type(high) is not int or not 0 < low <= high:
                raise PlanError(f"a plan pads sizes from 1 on, the least first, not {name} in {low}..{high}")

    def _check_cuts(self) -> None:
        if self.name is not None and not _GREEDY.fullmatch(self.name):
            raise PlanError(f"a plan that has a name is called EXECUTOR-greedy, not {self.name!r}")
        if self.carve_outs and self.host == "eager":
            raise PlanError("carve-outs need a host that compiles, and eager does not")
        for one in self.carve_outs:
            if one.role not in CARVED[self.host]:
                known = " and ".join(CARVED[self.host])
                raise PlanError(f"host {self.host} has carve-outs of {known} graphs, and no {one.role} one")
        cuts = {(one.role, one.graph): one for one in self.carve_outs}
        if any(cuts[one.role, one.graph] != one for one in self.carve_outs):
            raise PlanError("a plan carves one graph in two ways")
        if self.host == "aten":
            return
        if self.name is not None:
            raise PlanError(f"{self.name} needs host aten, not {self.host}")
        if self.saving != "min-cut":
            raise PlanError(
                f"saving policy {self.saving!r} needs host aten: under {self.host}, torch decides what is saved"
            )

    @property
    def greedy(self) -> str | None:
        """The executor that fuses all that it takes; None where the plan lets none."""
        return None if self.name is None else self.name.removesuffix("-greedy")

    @property
    def padding(self) -> str:
        """The sizes to which calls are filled up, as people read them; nothing where none are.

        >>> Plan("inductor", padded=(("s0", 33, 64),)).padding
        's0=33..64 to 64'
        """
        return " ".join(f"{name}={low}..{high} to {high}" for name, low, high in self.padded)

    @property
    def regions(self) -> tuple[Region, ...]:
        """All its carve-outs, whichever graph they are of."""
        return tuple(region for one in self.carve_outs for region in one.segmentation.regions)

    @property
    def executors(self) -> frozenset[str]:
        """Whoever compiles or runs a part of it, the host included."""
        return frozenset({self.host, *(region.executor for region in self.regions), *filter(None, [self.greedy])})

    def cut(self, role: str, graph_key: str | None) -> Segmentation | None:
        """The carve-outs of this graph; PlanError if the plan holds some of another graph in its place."""
        meant = [one for one in self.carve_outs if one.role == role]
        for one in meant:
            if one.graph == graph_key:
                return one.segmentation
        if meant:
            known = ", ".join(one.graph[:12] for one in meant)
            raise PlanError(f"the plan was made for {role} graph {known}, not {str(graph_key)[:12]}")
        return None

    @staticmethod
    def named(name: str) -> Plan:
        """Return one of the plans that exist without tuning; a greedy one fuses all that its executor takes."""
        if name in HOSTS:
            return Plan(name)
        if name in greedy_names():
            return Plan("aten", name=name)
        raise PlanError(f"there is no plan called {name!r}; known are {', '.join(named_plans())}")

    def to_json(self) -> str:
        """Return the plan as one line of canonical JSON, of format 2."""
        return _line(self._fields())

    @property
    def identity(self) -> str:
        """JSON of the plan without the digests of its sites: of plans of one program they tell none apart, and a plan whose
        digests were filled in is still the one that it was.
        """
        fields = self._fields()
        return _line({**fields, "rewrites": [{**one, "digest": None} for one in fields["rewrites"]]})

    @staticmethod
    def from_json(text: str) -> Plan:
        """Return the plan that `text` spells, in format 2 or 1, or raise PlanError saying what is wrong with it."""
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise PlanError(f"a plan must be JSON: {error}") from None
        try:
            return codec.read_fields(Plan, present_fields(data))
        except CodecError as error:
            raise PlanError(str(error)) from None

    def _fields(self) -> dict[str, Any]:
        return {"format": FORMAT, **codec.plain_fields(self)}


def named_plans() -> tuple[str, ...]:
    """Plans that are known by their name alone: a host by itself, or an executor that fuses all that it takes.

    >>> named_plans()
    ('aten', 'eager', 'inductor', 'inductor-greedy', 'nvfuser-greedy')
    """
    return tuple(sorted((*HOSTS, *greedy_names())))


def default_names() -> tuple[str, ...]:
    """Names of the defaults, which are in every race, whatever the launch.

    >>> default_names()
    ('eager', 'inductor', 'nvfuser-greedy')
    """
    return "eager", "inductor", *greedy_names(defaults=True)


def title_of(name: str) -> str:
    """What people call a plan that is known by its name.

    >>> title_of("nvfuser-greedy"), title_of("eager")
    ('nvFuser greedy', 'Eager')
    """
    executor, greedy, _ = name.partition("-greedy")
    return (traits_of(executor).title or executor.capitalize()) + greedy.replace("-", " ")


def _line(fields: Mapping[str, Any]) -> str:
    return json.dumps(fields, sort_keys=True, separators=(",", ":"))


def _member(what: str, value: object, known: tuple[str, ...]) -> None:
    if value not in known:
        raise PlanError(f"{what} {repr(value)[:_SHOWN]} is not one of {', '.join(known)}")
