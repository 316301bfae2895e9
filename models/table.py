"""From a Graph to the Work of any set of its ops, without making a Graph of each: the search asks for thousands."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from fuseplan.graph import Arg, Graph, Ref, TensorType
from fuseplan.models.facts import OpFacts, Signature, bytes_of, facts_of
from fuseplan.models.sizes import SizeValues
from fuseplan.models.traits import op_traits, traits_of
from fuseplan.models.work import RegionTraits, Work


def work_of(region: Graph, sizes: Mapping[str, int] | None = None) -> Work:
    """The work of a whole Graph; dynamic sizes are as in `sizes`, else as hinted.

    >>> from fuseplan.graph import Op, Value
    >>> x, y = (Value(name, TensorType("float32", (8, 16), (16, 1))) for name in "xy")
    >>> work = work_of(Graph((x,), (Op("aten.exp.default", (Ref("x"),), (), (y,)),), (Ref("y"),)))
    >>> work.bytes_in, work.bytes_out, work.special
    (512, 512, 128)
    """
    return WorkTable(region, sizes).of(range(len(region.ops)))


class WorkTable:
    """The work of sets of ops of one graph."""

    def __init__(self, graph: Graph, sizes: Mapping[str, int] | None = None) -> None:
        known = SizeValues(graph.symbols, sizes)
        self._facts: list[OpFacts] = [facts_of(op, graph, known) for op in graph.ops]
        self._outputs = [tuple(v.name for v in op.outputs if isinstance(v.type, TensorType)) for op in graph.ops]
        self._bytes = {name: bytes_of(kind, known) for name, kind in graph.types.items()}
        self._producer = graph.producer
        self._source = {
            op.outputs[alias.output].name: alias.value for op in graph.ops if not op.mutates for alias in op.aliases
        }
        self._users = {name: frozenset(users) for name, users in graph.users.items()}
        self._kept = frozenset(name for arg in graph.outputs for name in _names(arg))
        self._traits = [
            op_traits(op, graph, facts, self._producer, known) for op, facts in zip(graph.ops, self._facts, strict=True)
        ]
        self._readers = [
            frozenset(user for name in names for user in self._users.get(name, ())) for names in self._outputs
        ]

    def of(self, ops: Iterable[int], recompute: Iterable[int] = (), wanted: Collection[str] | None = None) -> Work:
        """The work of `ops` and `recompute` as one region, as if it had been extracted.

        Without `wanted`, the values that others need: what recomputed ops alone read is not, if nobody else reads those.
        """
        inside, again = frozenset(ops), frozenset(recompute)
        fusion = _Fusion(self._bytes)
        for i in sorted(inside | again):
            facts = self._facts[i]
            if facts.view:
                fusion.look(self._outputs[i], self._source)
            elif facts.idle:
                fusion.skip(self._outputs[i])
            else:
                fusion.add(i, facts, self._outputs[i])
        given = set()
        for i in inside:
            for name in self._outputs[i]:
                needed = self._escapes(name, inside, again) if wanted is None else name in wanted
                if needed:
                    fusion.give_out(name)
                    given.add(i)
        return fusion.work(traits_of(sorted(inside | again), self._traits, given, self._readers))

    def _escapes(self, name: str, inside: frozenset[int], again: frozenset[int]) -> bool:
        if name in self._kept:
            return True
        outside = self._users[name] - inside
        if not again or not outside:
            return bool(outside)
        return any(user not in again or self._is_needed(user, inside, again) for user in outside)

    def _is_needed(self, recomputed: int, inside: frozenset[int], again: frozenset[int]) -> bool:
        """Whether anybody outside reads what this region computes for itself."""
        return any(self._escapes(name, inside, again) for name in self._outputs[recomputed])


class _Fusion:
    """A region as we guess that a compiler would cut it into kernels, op by op.

    Kernels are numbered by what they wait for: a sum that does not fit those before it starts the next. Anchors have
    negative numbers. A value that passes from one kernel to another goes through memory.
    """

    __slots__ = (
        "between", "bytes_of", "empty", "facts", "given", "kernels", "made", "outputs", "read", "root",
        "scattered", "signatures", "spilled", "views", "written",
    )  # fmt: skip

    def __init__(self, bytes_of: Mapping[str, int]) -> None:
        self.bytes_of = bytes_of
        self.facts: list[OpFacts] = []
        self.root: dict[str, str] = {}
        """For each view made here, the value that it looks at."""
        self.made: dict[str, tuple[int, int]] = {}
        """For each value made here, its kernel and the first kernel that can have it."""
        self.read: dict[str, dict[int, dict[str, int]]] = {}
        """For each value from outside, by kernel, how many bytes are touched through which view."""
        self.signatures: dict[int, Signature] = {}
        self.kernels: set[int] = set()
        self.spilled: set[str] = set()
        self.given: set[str] = set()
        self.empty: set[str] = set()
        self.views = self.outputs = self.between = self.written = self.scattered = 0

    def look(self, names: Iterable[str], source: Mapping[str, str]) -> None:
        """Add a view."""
        self.views += 1
        root = self.root
        for name in names:
            seen = source[name]
            origin = root[name] = root.get(seen, seen)
            if origin not in self.made and origin not in self.empty:
                self.read.setdefault(origin, {})

    def skip(self, names: Iterable[str]) -> None:
        """Add an op that does nothing: what it gives is there, and no byte of it need be moved."""
        self.empty.update(names)

    def add(self, i: int, facts: OpFacts, names: Iterable[str]) -> None:
        """Add an op that computes."""
        self.facts.append(facts)
        root, made = self.root, self.made
        origins = [root.get(read.value, read.value) for read in facts.reads]
        ready = 0
        for origin in origins:
            if origin in made and made[origin][1] > ready:
                ready = made[origin][1]
        here = -1 - i if facts.library else self._kernel(ready, facts.signature)
        self.kernels.add(here)
        for origin, read in zip(origins, facts.reads, strict=True):
            if origin in self.empty:
                continue
            if origin not in made:
                self.read.setdefault(origin, {}).setdefault(here, {})[read.value] = read.bytes
            elif made[origin][0] != here:
                self.between += read.bytes
                self.spilled.add(origin)
            else:
                continue
            self.scattered += read.scattered
        place = (here, ready + 1) if facts.library else (here, here + facts.split)
        for name in names:
            made[name] = place
        if facts.written:
            self.written += facts.written
            self.given.update(names)

    def _kernel(self, ready: int, signature: Signature | None) -> int:
        if signature is not None:
            while self.signatures.setdefault(ready, signature) != signature:
                ready += 1
        return ready

    def give_out(self, name: str) -> None:
        """Others need this value."""
        self.outputs += 1
        origin = self.root.get(name, name)
        if origin in self.made and origin not in self.given:
            self.given.add(origin)
            self.written += self.bytes_of[origin]

    def work(self, traits: RegionTraits) -> Work:
        """All of it together."""
        bytes_in, between = 0, self.between
        for origin, kernels in self.read.items():
            held = self.bytes_of[origin]
            touched = [min(held, sum(views.values())) for views in kernels.values()]
            bytes_in += max(touched, default=0)
            between += sum(touched) - max(touched, default=0)
        between += sum(self.bytes_of[name] for name in self.spilled - self.given)
        facts = self.facts
        return Work(
            ops=len(facts),
            views=self.views,
            inputs=len(self.read),
            outputs=self.outputs,
            bytes_in=bytes_in,
            bytes_out=self.written,
            bytes_between=between + sum([one.again for one in facts]),
            bytes_alone=sum([one.bytes_alone for one in facts]),
            scattered=self.scattered,
            scattered_alone=sum([one.scattered_alone for one in facts]),
            kernels=len(self.kernels) + sum([one.split + (one.again > 0) for one in facts]),
            kernels_alone=sum([one.kernels_alone for one in facts]),
            pointwise=sum([one.pointwise for one in facts]),
            special=sum([one.special for one in facts]),
            reduced=sum([one.reduced for one in facts]),
            anchors=tuple(sorted([one.anchor for one in facts if one.anchor is not None])),
            traits=traits,
        )


def _names(arg: Arg) -> Iterable[str]:
    if isinstance(arg, Ref):
        return (arg.name,)
    return [name for item in arg for name in _names(item)] if isinstance(arg, tuple) else ()
