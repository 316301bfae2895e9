"""What a caller lets a checkpoint keep: the answers of its policy, op by op. The policy is a function of the caller's, which nobody can
write down; what it says of the ops of a block can be.

It is asked as AOTAutograd asks it, while the block runs on tensors without values. Where its answers are written down, a policy that
repeats them stands for it; and under a plan that changes what runs, in the caller's own process too: what was measured is what runs.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import GraphModule, Interpreter
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from fuseplan.capture.dynamo.modes import run_without_values
from fuseplan.errors import GraphError
from fuseplan.graph.limits import short

Answers = Mapping[str, Sequence[str]]
"""For each operator, by its name, what it is told each time that it runs; what comes after that is not kept."""
CONTEXTS = "_checkpoint_context_fn"
"""Where Dynamo leaves what makes a policy's contexts."""
_ANSWERS = "fuseplan_answers"
_KEPT_MODE: type[Any] = type(create_selective_checkpoint_contexts([])[0])
_REPEATED: WeakKeyDictionary[Callable[[], Any], Answers] = WeakKeyDictionary()
"""Whose policies repeat what."""


def ask_policies(gm: GraphModule) -> None:
    """Have the policies of all checkpointed blocks of a program answer: one that asks a size narrows what it may be.

    A GraphError says why one cannot be asked.
    """
    for block in _with_policies(gm):
        if _ANSWERS not in block.meta:
            made = block.meta[CONTEXTS]
            block.meta[_ANSWERS] = _REPEATED[made] if made in _REPEATED else _asked(block, made)


def answers_of(block: GraphModule) -> Answers | None:
    """What the policy of a checkpointed block said of its ops; None where it has none."""
    return block.meta.get(_ANSWERS)


def repeat_answers(gm: GraphModule) -> None:
    """Have policies say of a program's ops what they said, whatever becomes of the ops: so does a program that is rebuilt."""
    for block in _with_policies(gm):
        if _ANSWERS in block.meta:
            let_answer(block, block.meta[_ANSWERS])


def let_answer(block: GraphModule, answers: Answers) -> None:
    """Give a block a policy that answers so."""
    strange = {one for every in answers.values() for one in every} - CheckpointPolicy.__members__.keys()
    if strange:
        raise GraphError(
            f"torch {torch.__version__} has no {short(min(strange))} among what a checkpoint does with an op"
        )
    block.meta[CONTEXTS] = contexts_of(answers)
    block.meta[_ANSWERS] = answers


def contexts_of(answers: Answers) -> Callable[[], Any]:
    """What makes the contexts of a policy that answers so, as `checkpoint` takes it.

    >>> from torch.utils.checkpoint import checkpoint
    >>> x = torch.ones(2, requires_grad=True)
    >>> contexts = contexts_of({"aten::sin": ["MUST_SAVE"]})
    >>> checkpoint(lambda x: x.sin().exp(), x, use_reentrant=False, context_fn=contexts).sum().backward()
    """

    def contexts() -> Any:
        met = Counter[tuple[bool, str]]()

        def policy(context: Any, op: Any, *_: Any, **__: Any) -> CheckpointPolicy:
            name = _name(op)
            place, every = met[context.is_recompute, name], answers.get(name, ())
            met[context.is_recompute, name] += 1
            return CheckpointPolicy[every[place]] if place < len(every) else CheckpointPolicy.PREFER_RECOMPUTE

        return create_selective_checkpoint_contexts(policy)

    _REPEATED[contexts] = answers
    # for torch, which keeps nothing of a function that nobody vouches for
    contexts.cache_hash = hashlib.sha256(told(answers).encode()).hexdigest()  # type: ignore[attr-defined]
    return contexts


def told(answers: Answers) -> str:
    """All answers in one line.

    >>> told({"aten::sin": ["MUST_SAVE", "PREFER_RECOMPUTE"]})
    '{"aten::sin": ["MUST_SAVE", "PREFER_RECOMPUTE"]}'
    """
    return json.dumps({name: list(every) for name, every in answers.items()}, sort_keys=True)


def checkpointed(block: Any, *args: Any, **kwargs: Any) -> Any:
    """Run a block of a trace under activation checkpointing, with a policy of its own."""
    return checkpoint(block, *args, context_fn=block.meta[CONTEXTS], **kwargs)


def _with_policies(gm: GraphModule) -> list[GraphModule]:
    return [block for block in gm.modules() if isinstance(block, GraphModule) and CONTEXTS in block.meta]


def _asked(block: GraphModule, made: Callable[[], Any]) -> Answers:
    """What the policy says as torch asks it."""
    values = [node.meta.get("example_value") for node in block.graph.find_nodes(op="placeholder")]
    fakes = next((value.fake_mode for value in values if isinstance(value, FakeTensor)), None)
    found: dict[str, list[str]] = defaultdict(list)
    try:
        keeping, _ = made()
        if type(keeping) is not _KEPT_MODE:
            raise GraphError(f"its contexts are {type(keeping).__name__}")
        policy = keeping.policy_fn

        def noted(context: Any, op: Any, *args: Any, **kwargs: Any) -> Any:
            answer = policy(context, op, *args, **kwargs)
            if isinstance(answer, bool):
                answer = CheckpointPolicy.MUST_SAVE if answer else CheckpointPolicy.PREFER_RECOMPUTE
            found[_name(op)].append(answer.name)
            return answer

        keeping.policy_fn = noted
        if fakes is None:
            raise GraphError("it is given nothing but numbers")
        with run_without_values(fakes), _casts_unkept():
            given = [_again(value) for value in values]
            with keeping:
                Interpreter(block).run(*given)
    except GraphError:
        raise
    except Exception as error:  # noqa: BLE001 -- a caller's function may raise anything: then there is no key
        raise GraphError(f"it could not be asked: {type(error).__name__}") from None
    return {name: every for name, asked in found.items() if (every := _without_the_usual(asked))}


@contextmanager
def _casts_unkept() -> Iterator[None]:
    """While it lasts, autocast casts a weight anew each time, as under AOTAutograd: so often are policies asked of it."""
    caches = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(caches)


def _without_the_usual(asked: Sequence[str]) -> list[str]:
    """The answers but for those at the end that say what holds without any."""
    last = max((place for place, one in enumerate(asked) if one != CheckpointPolicy.PREFER_RECOMPUTE.name), default=-1)
    return list(asked[: last + 1])


def _name(op: Any) -> str:
    return str(op.name()) if callable(getattr(op, "name", None)) else str(op)


def _again(value: Any) -> Any:
    """A value that a block may do what it wants with; one that was computed may be written to."""
    if not isinstance(value, Tensor):
        return value
    fresh = value.detach().requires_grad_(value.requires_grad)
    if value.is_leaf or 0 in value.stride():  # nobody writes to what stands for several elements
        return fresh
    return torch.empty_strided(fresh.shape, fresh.stride(), dtype=fresh.dtype, device=fresh.device).copy_(fresh)
