"""Functions of torch that hold attention, such as multi_head_attention_forward, as the ops that they run: kinds find it in these.

Dynamo leaves such a call as one node. What stands in its place is traced from the function itself, just below Python, where
attention is still one op and autocast has cast nothing yet: AOTAutograd would trace the same.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch._guards import tracing
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.fx.node import map_arg

from fuseplan.log import logger
from fuseplan.rewrites.base import Draft, likeness
from fuseplan.rewrites.blocks import blocks_in
from fuseplan.rewrites.encoder_layer import encoder_layer
from fuseplan.rewrites.special import example, special
from fuseplan.rewrites.writes import may_write

_BODIES: Mapping[Callable[..., Any], Callable[..., Any]] = {
    F.multi_head_attention_forward: F.multi_head_attention_forward,
    torch._transformer_encoder_layer_fwd: encoder_layer,
}
"""Functions that hold attention, and what runs the same as ops that kinds know."""
_SHAPING = frozenset(
    "getitem view reshape broadcast_to expand expand_as transpose permute unsqueeze squeeze detach flatten unflatten".split()
    + "size float to contiguous mean sum".split()
)
"""Methods and functions that draw nothing."""

_KNOWN: WeakKeyDictionary[GraphModule, Unfolded] = WeakKeyDictionary()
"""What graphs have become that are still in use: finding sites and rewriting them ask for the same."""


class _FoldedError(Exception):
    """A call cannot be unfolded; the message says why."""


@dataclass(frozen=True)
class Unfolded:
    """A Dynamo graph in which attention that functions hold is there to be found."""

    gm: GraphModule
    """The graph itself where there is nothing to unfold."""
    left: Mapping[str, str] = field(default_factory=dict)
    """The calls that stay as they are, by their names, each with the reason."""


def unfolded(gm: GraphModule) -> Unfolded:
    """Return a copy of a Dynamo graph with such calls unfolded, those inside checkpointed blocks among them; `gm` stays as it is.

    What has been unfolded is returned as it is. All who ask for one graph get one copy, so that they speak of the same nodes.
    """
    if gm not in _KNOWN:
        found = _unfolded(gm)
        if found.gm is gm:
            return found
        _KNOWN[gm] = found
    return _KNOWN[gm]


def _unfolded(gm: GraphModule) -> Unfolded:
    calls = [node for node in gm.graph.nodes if node.op == "call_function" and node.target in _BODIES]
    blocks = {name: unfolded(block) for name, block in blocks_in(gm)}
    left = {name: reason for block in blocks.values() for name, reason in block.left.items()}
    changed = {name: block.gm for name, block in blocks.items() if block.gm is not getattr(gm, name)}
    if not calls and not changed:
        return Unfolded(gm, left)
    draft, bodies = Draft(gm), _Bodies()
    for call in calls:
        reason = _reason_to_leave(draft, call, bodies)
        if reason is not None:
            left[call.name] = reason
            logger.info("attention inside of %s is left alone: %s", call.name, reason)
    if not changed and all(call.name in left for call in calls):
        return Unfolded(gm, left)
    found = draft.finished()
    for name, block in changed.items():
        setattr(found, name, block)
    return Unfolded(found, left)


def _reason_to_leave(draft: Draft, call: Node, bodies: _Bodies) -> str | None:
    """Unfold a call, or tell why it stays as it is."""
    try:
        _unfold(draft, call, bodies)
    except _FoldedError as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 -- a program that torch runs as it is stays tunable as it is
        logger.warning("attention inside of %s is left alone", call.name, exc_info=True)
        return f"it could not be unfolded: {type(error).__name__}"
    return None


def _unfold(draft: Draft, call: Node, bodies: _Bodies) -> None:
    """Put the ops of a call in its place."""
    _drop_unread(draft.copies[call])
    read = _results_read(draft.copies[call])
    if not read:
        raise _FoldedError("nobody reads its result")
    for node in (*call.all_input_nodes, call):
        if what := special(example(node)):
            raise _FoldedError(f"{node.name} is {what}")
    like = next(value for value in read.values() if isinstance(value, FakeTensor))
    body = bodies.body(call, tuple(read))
    copied, made = draft.copies[call], list[Node]()
    try:
        with _rules_at(call), draft.graph.inserting_before(copied):
            if _BODIES[call.target] is not call.target and torch.is_autocast_enabled(like.device.type):  # type: ignore[index]
                raise _FoldedError("autocast does not reach into it, and would change its ops")
            results = _inserted(draft, body, _given(call, copied), like, made)
        for result, was in zip(results, read.values(), strict=True):
            _check_alike(example(result), was)
    except BaseException:
        for node in reversed(made):
            draft.graph.erase_node(node)
        raise
    _replace(copied, dict(zip(read, results, strict=True)))


def _drop_unread(node: Node) -> None:
    """Drop what only shapes a result, and is read by nobody: a model may do so with weights for a caller who then does not ask for them."""
    for user in list(node.users):
        _drop_unread(user)
        if not user.users and getattr(user.target, "__name__", user.target) in _SHAPING and not may_write(user):
            user.graph.erase_node(user)


def _results_read(call: Node) -> dict[int | None, Any]:
    """What is read of what a call gives, by its place there, or None where it gives one tensor: what is known of each."""
    if isinstance(example(call), torch.Tensor):
        return {None: example(call)} if call.users else {}
    read: dict[int | None, Any] = {}
    for user in call.users:
        if user.target is not operator.getitem or not isinstance(user.args[1], int):
            raise _FoldedError("its result is read as a whole")
        if user.users:
            read[user.args[1]] = example(user)
    return read


def _leaves(call: Node) -> list[Node]:
    return list(dict.fromkeys(call.all_input_nodes))


def _given(call: Node, copied: Node) -> list[Node]:
    """What the copy of a call reads in the draft for each of its leaves: other than copies where an earlier call was unfolded."""
    read = dict(zip(_nodes_read(call), _nodes_read(copied), strict=True))
    return [read[node] for node in _leaves(call)]


def _nodes_read(call: Node) -> list[Node]:
    """The nodes in the arguments of a call, in their order, as often as they stand there."""
    found: list[Node] = []
    map_arg((call.args, call.kwargs), found.append)
    return found


@dataclass
class _Bodies:
    """The ops of functions as graphs; equal calls share one."""

    _traced: dict[Any, Graph] = field(default_factory=dict)

    def body(self, call: Node, read: tuple[int | None, ...]) -> Graph:
        """The ops of a call that give those of its results; its inputs are the nodes that the call reads, each once."""
        places = {node: place for place, node in enumerate(_leaves(call))}
        same = repr(map_arg((call.args, call.kwargs), lambda node: f"%{places[node]}"))
        key = (likeness([call]), same, read)
        if key not in self._traced:
            self._traced[key] = _traced(call, read)
        return self._traced[key]


def _traced(call: Node, read: tuple[int | None, ...]) -> Graph:
    leaves, function = _leaves(call), _BODIES[call.target]  # type: ignore[index]

    def run(*given: Any) -> tuple[Any, ...]:
        values = dict(zip(leaves, given, strict=True))
        args, kwargs = map_arg((call.args, call.kwargs), values.__getitem__)
        result = function(*args, **kwargs)
        return tuple(result if place is None else result[place] for place in read)

    examples = [example(node) for node in leaves]
    mode = next(value.fake_mode for value in examples if isinstance(value, FakeTensor))
    trace = make_fx(run, tracing_mode="real", pre_dispatch=True, _allow_non_fake_inputs=True)
    try:
        with tracing(None), mode:  # without Dynamo's own context, as masks are traced
            graph = trace(*examples).graph
    except (RuntimeError, TypeError, ValueError, NotImplementedError, AssertionError) as error:
        first = str(error).strip().splitlines()[:1] or [type(error).__name__]
        raise _FoldedError(f"it cannot be traced by itself: {first[0]}") from error
    graph.eliminate_dead_code()
    return graph


def _inserted(draft: Draft, body: Graph, given: list[Node], like: FakeTensor, made: list[Node]) -> list[Node]:
    """Put the ops of a body where the draft inserts nodes, and give its results; `made` gets to hold all that is new."""
    values = dict(zip(body.find_nodes(op="placeholder"), given, strict=True))
    for node in body.nodes:
        if node.op in ("placeholder", "output"):
            continue
        if node.op != "call_function":
            raise _FoldedError(f"it holds {node.name}")
        args, kwargs = map_arg((node.args, node.kwargs), values.__getitem__)
        values[node] = draft.call(node.target, args, kwargs, like)
        made.append(values[node])
    (results,) = body.output_node().args
    assert isinstance(results, tuple | list)
    if not all(isinstance(result, Node) for result in results):
        raise _FoldedError("one of its results is no tensor")
    return [values[result] for result in results if isinstance(result, Node)]


def _rules_at(call: Node) -> ExitStack:
    """While it lasts, autocast is what the program sets around a call."""
    entered: dict[Node, None] = {}
    for node in call.graph.nodes:
        if node is call:
            break
        if node.target is torch.amp.autocast_mode._enter_autocast:
            entered[node] = None
        if node.target is torch.amp.autocast_mode._exit_autocast:
            entered.pop(node.args[0], None)
    stack = ExitStack()
    for node in entered:
        given: Any = node.args
        stack.enter_context(torch.autocast(*given))
    return stack


def _check_alike(new: Any, old: Any) -> None:
    """The ops must give what the call gave, or it would mean something else to whoever reads it."""
    if not isinstance(new, FakeTensor) or not isinstance(old, FakeTensor):
        raise _FoldedError("one of its results is no plain tensor")
    if (new.dtype, new.device, new.requires_grad) != (old.dtype, old.device, old.requires_grad):
        raise _FoldedError(f"its ops would give {new.dtype}, and it gives {old.dtype}".replace("torch.", ""))
    pairs = zip((*new.shape, *new.stride()), (*old.shape, *old.stride()), strict=False)
    if new.dim() != old.dim() or not all(statically_known_true(one == other) for one, other in pairs):
        raise _FoldedError("its ops would give a result that is laid out otherwise")


def _replace(call: Node, results: Mapping[int | None, Node]) -> None:
    """Let who reads the results of a call in the draft read these, and drop the call."""
    for user in list(call.users):
        if None in results:
            break
        if user.users:
            user.replace_all_uses_with(results[user.args[1]])  # type: ignore[index]
        user.graph.erase_node(user)
    if None in results:
        call.replace_all_uses_with(results[None])
    call.graph.erase_node(call)
