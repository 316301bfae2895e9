"""A site of attention, however it is spelled: what it is given, what is proven of its mask, and the ways that are legal.

A way is a kernel (`auto`, `flash`, `cudnn`, `efficient`, `math`, `flex`), and what becomes of the arguments (ways.py). Dropping a mask
is legal only where a proof says that it changes nothing, for all sizes in range; whatever else is changed computes the same by
construction, and is legal only where the kernel, by the device's own rules, gains by it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

from fuseplan.capture.fx.flex import Sight
from fuseplan.capture.fx.own_kernels import processors_of
from fuseplan.plan import ATTENTION_WAYS, INPUT_ENDINGS, MASK_ENDINGS
from fuseplan.rewrites.attention.device import OWN, chosen_kernel, no_kernel, no_window, plain, switched_on, takes
from fuseplan.rewrites.attention.few_queries import has_many_keys, no_split, packed_arguments
from fuseplan.rewrites.attention.flex import no_flex
from fuseplan.rewrites.attention.inputs import Source, before_copy, before_repeats, is_narrower
from fuseplan.rewrites.attention.layouts import ALIGNMENT, LAYOUTS, layout_arguments
from fuseplan.rewrites.attention.mask_source import MaskSource
from fuseplan.rewrites.attention.ways import AttentionWay
from fuseplan.rewrites.base import Draft, Site
from fuseplan.segment.masks import MaskProof, UnprovenError

PARAMETERS = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
"""Of scaled_dot_product_attention, in order."""
T = TypeVar("T")
_REASON_UNDER = {"window": "flash+window", "documents": "flex+documents"}
"""The way by which it is told why a mask is not such a one; of any other ending, that under the kernel that PyTorch chooses."""
_FUSED = ("auto", "efficient")
"""Where a mask is laid out without being asked for: under the kernel that PyTorch then chooses, or, for a mask that takes a
gradient, under the one that gives it."""


@dataclass(frozen=True, eq=False)
class AttentionSite(Site, ABC):
    """A place in a Dynamo graph that computes attention: one call of it, or the ops that it is written out in."""

    proof: MaskProof
    """What is proven of its mask."""
    result: Node = field(repr=False)
    """The node of the original graph that gives what attention gives; a call takes its place."""

    @property
    @abstractmethod
    def fakes(self) -> Mapping[str, Any]:
        """What attention is given here, by parameter: fake tensors and plain values."""

    @property
    def given(self) -> Mapping[str, Node]:
        """Those of the arguments that are nodes of the original graph as they stand, which `write` gives as they are."""
        return {}

    @abstractmethod
    def write(self, draft: Draft) -> dict[str, Any]:
        """The same arguments as nodes of a draft, or plain values. What is not there yet is put in before the result."""

    @property
    def matched(self) -> Collection[Node]:
        """The nodes of the original that the site consists of, and that nobody else reads: they go, if they draw random
        numbers, too.
        """
        return (self.result,)

    @property
    def masked_by(self) -> Collection[Node]:
        """The nodes of the original that the mask is made of; where it is dropped, all that only built them goes."""
        return ()

    @cached_property
    def offered(self) -> tuple[str, ...]:
        """The ways that are worth a word here, legal or not: all that its mask and its arguments allow, and of what they rule out
        one way each, by which the reason is told.
        """
        ruled_out = [one for one in (*MASK_ENDINGS, *INPUT_ENDINGS) if self._ruled_out(one) is not None]
        reasons = {_REASON_UNDER.get(one, f"auto+{one}") for one in ruled_out}
        if (
            self.refusal("split") is not None
        ):  # nor is any other way in which keys are split, but for what drops the mask
            ruled_out.append("split")
            reasons.add("split")
        return tuple(way for way in ATTENTION_WAYS if way in reasons or not set(way.split("+")) & set(ruled_out))

    def order_of_result(self, way: AttentionWay) -> tuple[int, ...] | None:
        """The order of dimensions in memory that the result must have in a way; None where any will do, or `write` sees to it."""
        return None

    @cached_property
    def variants(self) -> tuple[str, ...]:
        """The ways that are legal here, on this machine."""
        return tuple(way for way in self.offered if self.refusal(way) is None)

    @cached_property
    def preferred(self) -> str:
        """The way to try first: on a GPU, with keys that are split where there are few queries for many; else the usual one."""
        split = self._split
        if split is None or self.fakes["query"].device.type != "cuda":
            return self.usual
        batches, groups = self.fakes["key"].shape[:2]
        few = type(batches) is int and batches * groups <= processors_of(self.fakes["query"].device)
        return split if few or split == "split+grouped" else self.usual

    @cached_property
    def _split(self) -> str | None:
        """The way in which keys are split, if one is legal here, and there are many for each query."""
        legal = (way for way in ("split+grouped", "split+unmasked", "split") if self.refusal(way) is None)
        found = next(legal, None)
        return found if found and has_many_keys(self.fakes["query"], self.fakes["key"]) else None

    @cached_property
    def usual(self) -> str:
        """The way that needs no measurement: the mask dropped where that is proven to be the same, or laid out where no fused
        kernel takes it otherwise; and else attention kept whole.
        """
        if self.proof.verdict is not None:
            return {"causal": "auto+causal", "all": "auto+unmasked"}[self.proof.verdict]
        for kernel in _FUSED:
            for layout in LAYOUTS:
                if self.refusal(f"{kernel}+{layout}") is None:
                    return f"{kernel}+{self._in_aligned_rows(kernel, layout)}"
        return "auto"

    @property
    def by_name(self) -> list[str]:
        """The usual way under each fused kernel that takes it so, instead of under the one that PyTorch chooses."""
        way = AttentionWay.parse(self.usual)
        found = list[str]()
        for kernel in ("flash", "efficient"):
            layout = self._in_aligned_rows(kernel, way.mask) if way.lays_out else way.mask
            found.append("+".join(filter(None, (kernel, layout))))
        return [one for one in found if self.refusal(one) is None]

    @property
    def rivals(self) -> dict[str, str]:
        """The ways that are worth a race against the preferred one, by a word for what they have in common."""
        _, _, ending = self.usual.partition("+")
        found = {}
        for other in ("cudnn", "flash", "efficient"):
            endings = dict.fromkeys((ending, *(("rows", "aligned") if not self.proof.verdict else ())))
            ways = ["+".join(filter(None, (other, each))) for each in endings]
            found[other] = next((way for way in ways if self.refusal(way) is None), ways[0])
        skipping = ("flex+window", "flex+documents")
        found["window"] = "flash+window"
        found["flex"] = next((way for way in skipping if self.refusal(way) is None), skipping[0])
        if self._split is not None:
            found["split"], found["unsplit"] = self._split, self.usual
        for added in ("grouped", "views", "grouped+views", "packed"):
            found[added.replace("+", " and ")] = f"{self.usual}+{added}"
        return found

    def _in_aligned_rows(self, kernel: str, layout: str) -> str:
        """A layout, with aligned rows where the kernel that runs would copy others at each call."""
        arguments = self.arguments_in(AttentionWay(kernel, layout))
        efficient = kernel == "efficient" or chosen_kernel(arguments, self._switched_on) == "efficient"
        mask = plain(arguments["attn_mask"])
        better = efficient and mask.dtype != torch.bool and not _aligned(mask)
        return "aligned" if better and self.refusal(f"{kernel}+aligned") is None else layout

    def refusal(self, text: str) -> str | None:
        """Why a way is not legal here; None if it is."""
        if text not in ATTENTION_WAYS:
            return f"there is no attention variant {text!r}"
        way = AttentionWay.parse(text)
        for ending in text.split("+")[1:]:
            if reason := self._ruled_out(ending):
                return reason
        if way.kernel not in ("auto", *OWN, *self._switched_on):
            return f"{way.kernel} is switched off"
        try:
            arguments = self.arguments_in(way)
            if way.kernel == "flex":
                return no_flex(arguments, lambda: self.sight(way))
            if way.kernel == "split":
                return no_split(arguments)
            if way.kernel != "auto" and (reason := no_kernel(way.kernel, arguments)):
                return reason
            if way.mask == "window" and (reason := no_window(arguments)):
                return reason
            return self._useless(way, arguments) if way.lays_out or way.grouped or way.packed or way.views else None
        except UnprovenError as unproven:
            return str(unproven)

    def _ruled_out(self, ending: str) -> str | None:
        """Why no way with this ending is legal here, whatever the kernel; None if some may be."""
        wanted = {"causal": "causal", "unmasked": "all"}.get(ending)
        if ending == "window":
            return self._no_window()
        if ending == "documents":
            return self._no_documents()
        if wanted is not None:
            found = f"its mask is proven {self.proof.verdict}" if self.proof.verdict else self.proof.reason
            return None if self.proof.verdict == wanted else f"its mask is not proven {wanted}: {found}"
        try:
            self.arguments_in(AttentionWay.parse(f"auto+{ending}"))
        except UnprovenError as unproven:
            return str(unproven)
        return None

    def _no_window(self) -> str | None:
        """Why its mask is not known to be a window, in which each query sees the key in its own place."""
        if self.proof.window is None:
            return f"its mask is not proven a window: {self.proof.verdict or self.proof.reason}"
        rows, columns = self.fakes["attn_mask"].shape[-2:]
        queries, keys = (self.fakes[name].shape[-2] for name in ("query", "key"))
        if not all(statically_known_true(each == queries) for each in (keys, rows, columns)):
            return "it has not as many keys as queries"
        return None

    def _no_documents(self) -> str | None:
        """Why its mask is not known to be blocks of documents."""
        if self.proof.verdict or self.proof.window:
            return f"its mask is not blocks of documents: it is proven {self.proof.verdict or self.proof.window}"
        try:
            self._once("documents", self.documents)
        except UnprovenError as unproven:
            return f"its mask is not known to be blocks of documents: {unproven}"
        return None

    def documents(self) -> Sight:
        """What each query sees where its mask shows it its own document; UnprovenError where that is not known."""
        raise UnprovenError("they are looked for where attention is called alone")

    def sight(self, way: AttentionWay) -> Sight:
        """What each query sees in a way that is said to be a window, or blocks of documents."""
        if way.mask == "documents":
            return self._once("documents", self.documents)
        window = self.proof.window
        assert window is not None  # or the way would not be legal
        return Sight(self.fakes["query"].shape[-2], window.left, window.right)

    def _useless(self, way: AttentionWay, arguments: Mapping[str, Any]) -> str | None:
        """Why it serves nothing to give a kernel other arguments, though it takes them; or why none takes them."""
        kernel = chosen_kernel(arguments, self._switched_on) if way.kernel == "auto" else way.kernel
        if kernel is None or kernel == "math":
            return "no fused kernel takes it so"
        if not way.lays_out:
            return None
        if way.mask == "aligned" and not _aligned(plain(arguments["attn_mask"])):
            return "the length of its rows is known at run time only"
        if way.kernel == "auto" and (reason := no_kernel(kernel, arguments)):
            return reason
        written = self.arguments_in(replace(way, mask=""))
        if not (
            chosen_kernel(written, self._switched_on) == kernel if way.kernel == "auto" else takes(kernel, written)
        ):
            return None
        mask = plain(written["attn_mask"])  # one of booleans becomes one of floats at each call in any case
        copied = kernel == "efficient" and mask.dtype != torch.bool and not _aligned(mask)
        return None if copied and way.mask == "aligned" else f"{kernel} takes its mask as it is written"

    def runs_otherwise(self, way: AttentionWay) -> bool:
        """Whether another kernel runs in a way than would as the program is written, or from other layouts."""
        if way.kernel in OWN or way.packed or way.views or way.mask == "window":
            return True
        try:
            return self.kernel_in(way) != self.kernel_as_written
        except UnprovenError:
            return False

    def kernel_in(self, way: AttentionWay) -> str | None:
        """The kernel that runs in a way, here as the process is set now; UnprovenError where that cannot be told."""
        return chosen_kernel(self.arguments_in(way), self._switched_on) if way.kernel == "auto" else way.kernel

    @property
    def kernel_as_written(self) -> str | None:
        """The one that runs if nobody rewrites it; UnprovenError where that cannot be told."""
        return chosen_kernel(self.fakes, self._switched_on)

    @cached_property
    def _switched_on(self) -> tuple[str, ...]:
        return switched_on(self.result)

    def arguments_in(self, way: AttentionWay) -> dict[str, Any]:
        """What attention is given in a way, as `fakes` has it; UnprovenError where that is not what the program computes."""
        arguments = {**self.fakes, **{name: source.fake for name, source in self.sources(way).items()}}
        if way.grouped or way.packed:
            arguments["enable_gqa"] = way.grouped
        if way.lays_out:
            arguments["attn_mask"] = self.laid_out(way)
        arguments = with_mask(arguments, way)
        return packed_arguments(arguments) if way.packed else arguments

    def laid_out(self, way: AttentionWay) -> FakeTensor:
        """What is known of the mask as a way lays it out."""
        query, key, mask = (self.fakes[name] for name in ("query", "key", "attn_mask"))
        if mask is None:
            raise UnprovenError("it has no mask to lay out")
        given = layout_arguments(way.mask, mask, plain(query), plain(key), query.dim())
        if not is_narrower(plain(mask).shape, (*query.shape[:-1], key.shape[-2])):
            raise UnprovenError("its mask may be larger than the scores")
        with plain(mask).fake_mode:
            return plain(self._once(way.mask, lambda: LAYOUTS[way.mask](*given)))

    def sources(self, way: AttentionWay) -> dict[str, Source]:
        """What stands in a way in the place of a query, key or value."""
        repeats = way.grouped or (way.packed and self.fakes["enable_gqa"] is False)
        found = dict(self._once("grouped", self._unrepeated)) if repeats else {}
        if way.views:
            found = {**self._once("views", self._uncopied), **found}
        return found

    def bypassed(self, text: str) -> Collection[Node]:
        """The nodes of the original that a way may leave unread: what built the mask or the copies that it drops."""
        way = AttentionWay.parse(text)
        found = {node for source in self.sources(way).values() for node in source.instead_of}
        if way.drops_mask:
            found |= self._once("masked by", lambda: {n for mask in self.masked_by for n in MaskSource(mask).nodes})
        return found

    def _uncopied(self) -> dict[str, Source]:
        given = {name: self.given[name] for name in ("query", "key", "value") if name in self.given}
        copies = {name: before_copy(node, self.matched, self.result) for name, node in given.items()}
        found = {name: source for name, source in copies.items() if source is not None}
        if not found:
            raise UnprovenError("no query, key or value is a copy that only lays it out")
        return found

    def _once(self, what: str, found: Callable[[], T]) -> T:
        """What was found of the site when it was first asked for, or why it was not."""
        if what not in self._found:
            try:
                self._found[what] = found()
            except UnprovenError as unproven:
                self._found[what] = unproven
        if isinstance(self._found[what], UnprovenError):
            raise UnprovenError(str(self._found[what]))
        return self._found[what]  # type: ignore[no-any-return]

    @cached_property
    def _found(self) -> dict[str, Any]:
        return {}

    def _unrepeated(self) -> dict[str, Source]:
        if self.fakes["enable_gqa"] is not False:
            raise UnprovenError("its heads are grouped as it is")
        if not {"key", "value"} <= self.given.keys():
            raise UnprovenError("its keys and values are not repeated for each head of a group")
        found = {name: before_repeats(self.given[name], self.result) for name in ("key", "value")}
        heads = [plain(self.fakes[name]).shape[1] for name in ("query", "key", "value")]
        groups = [source.fake.shape[1] for source in found.values()]
        if not all(
            statically_known_true(a == b)
            for a, b in zip((*heads[:2], *groups[:1]), (*heads[1:], *groups[1:]), strict=True)
        ):
            raise UnprovenError("its keys and values are repeated differently")
        return found


def with_mask(arguments: Mapping[str, Any], way: AttentionWay) -> dict[str, Any]:
    """The arguments of attention, without the mask that a way drops."""
    if not way.drops_mask:
        return dict(arguments)
    return {**arguments, "attn_mask": None, "is_causal": way.mask == "causal"}


def _aligned(mask: torch.Tensor) -> bool:
    return all(statically_known_true(stride % ALIGNMENT == 0) for stride in mask.stride()[:-1])
