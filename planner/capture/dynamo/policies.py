"""What a caller lets a checkpoint keep: the answers of its policy, op by op. The policy is a function of the caller's, which nobody can
write down; what it says of the ops of a block can be.

It is asked as torch asks it, while the block runs on tensors without values. Where its answers are written down, a policy that
repeats them stands for it.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import GraphModule, Interpreter
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from fuseplan.errors import GraphError

Answers = Mapping[str, Sequence[str]]
"""For each operator, by its name, what it is told each time that it runs; what comes after that is not kept."""
CONTEXTS = "_checkpoint_context_fn"
"""Where Dynamo leaves what makes a policy's contexts."""
_ANSWERS = "fuseplan_answers"
_KEPT_MODE: type[Any] = type(create_selective_checkpoint_contexts([])[0])


def answers_of(block: GraphModule) -> Answers | None:
    """What the policy of a checkpointed block says of its ops; None where it has none, or nothing is kept for a backward.

    A GraphError says why that cannot be told.
    """
    made = block.meta.get(CONTEXTS)
    if _ANSWERS not in block.meta and made is not None and torch.is_grad_enabled():
        known = getattr(made, "answers", None)
        block.meta[_ANSWERS] = _asked(block, made) if known is None else known
    return block.meta.get(_ANSWERS)


def let_answer(block: GraphModule, answers: Answers) -> None:
    """Give a block a policy that answers so."""
    strange = {told for every in answers.values() for told in every} - CheckpointPolicy.__members__.keys()
    if strange:
        raise GraphError(f"torch {torch.__version__} has no {min(strange)!r} among what a checkpoint does with an op")
    block.meta[CONTEXTS] = contexts_of(answers)
    block.meta[_ANSWERS] = answers


def contexts_of(answers: Answers) -> Callable[[], Any]:
    """What makes the contexts of a policy that answers so, as `checkpoint` takes it.

    >>> from torch.utils.checkpoint import checkpoint
    >>> x = torch.ones(2, requires_grad=True)
    >>> contexts = contexts_of({"aten::sin": ["MUST_SAVE"]})
    >>> checkpoint(lambda x: x.sin().exp(), x, use_reentrant=False, context_fn=contexts).sum().backward()
    >>> contexts.answers
    {'aten::sin': ['MUST_SAVE']}
    """

    def contexts() -> Any:
        met = Counter[tuple[bool, str]]()

        def policy(context: Any, op: Any, *_: Any, **__: Any) -> CheckpointPolicy:
            name = _name(op)
            place, told = met[context.is_recompute, name], answers.get(name, ())
            met[context.is_recompute, name] += 1
            return CheckpointPolicy[told[place]] if place < len(told) else CheckpointPolicy.PREFER_RECOMPUTE

        return create_selective_checkpoint_contexts(policy)

    contexts.answers = answers  # type: ignore[attr-defined]
    # for torch, which keeps nothing of a function that nobody vouches for
    contexts.cache_hash = hashlib.sha256(told(answers).encode()).hexdigest()  # type: ignore[attr-defined]
    return contexts


def told(answers: Answers) -> str:
    """All answers in one line.

    >>> told({"aten::sin": ["MUST_SAVE", "PREFER_RECOMPUTE"]})
    'aten::sin MUST_SAVE PREFER_RECOMPUTE'
    """
    return ", ".join(f"{name} {' '.join(every)}" for name, every in sorted(answers.items()))


def checkpointed(block: Any, *args: Any, **kwargs: Any) -> Any:
    """Run a block of a trace under activation checkpointing, with a policy of its own."""
    return checkpoint(block, *args, context_fn=block.meta[CONTEXTS], **kwargs)


def _asked(block: GraphModule, made: Callable[[], Any]) -> Answers:
    """What the policy says as torch asks it."""
    values = [node.meta.get("example_value") for node in block.graph.find_nodes(op="placeholder")]
    fakes = next((value.fake_mode for value in values if isinstance(value, FakeTensor)), None)
    found: dict[str, list[str]] = defaultdict(list)
    try:
        keeping, _ = made()
        if type(keeping) is not _KEPT_MODE:
            raise TypeError(f"its contexts are {type(keeping).__name__}")
        policy = keeping.policy_fn

        def noted(context: Any, op: Any, *args: Any, **kwargs: Any) -> Any:
            answer = policy(context, op, *args, **kwargs)
            if isinstance(answer, bool):
                answer = CheckpointPolicy.MUST_SAVE if answer else CheckpointPolicy.PREFER_RECOMPUTE
            found[_name(op)].append(answer.name)
            return answer

        keeping.policy_fn = noted
        if fakes is None:
            raise TypeError("it is given nothing but numbers")
        with fakes, keeping:
            Interpreter(block).run(*map(_again, values))
    except Exception as error:  # noqa: BLE001 -- a caller's function may raise anything: then there is no key
        why = f"{type(error).__name__}: {error}".splitlines()[0]  # the rest is FX's, on where it was
        raise GraphError(f"it could not be asked: {why}") from None
    return {name: every for name, asked in found.items() if (every := _without_the_usual(asked))}


def _without_the_usual(asked: Sequence[str]) -> list[str]:
    """The answers but for those at the end that say what holds without any."""
    last = max((place for place, one in enumerate(asked) if one != CheckpointPolicy.PREFER_RECOMPUTE.name), default=-1)
    return list(asked[: last + 1])


def _name(op: Any) -> str:
    return str(op.name()) if callable(getattr(op, "name", None)) else str(op)


def _again(value: Any) -> Any:
    """A value that a block may do what it wants with."""
    return value.detach().requires_grad_(value.requires_grad) if isinstance(value, Tensor) else value
