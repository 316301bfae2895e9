"""What attention is given: keys and values that are repeated for their group by hand, and copies that only lay out."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from agreement import assert_as_accurate, in_double
from attention_calls import Program, by_expand, found_in, heads, in_ways
from fuseplan.plan import Rewrite
from fuseplan.rewrites.apply import rewritten

# grouped heads


def by_flatten(x: Tensor) -> Tensor:
    return x.unsqueeze(2).expand(-1, -1, 2, -1, -1).flatten(1, 2)


def by_interleave(x: Tensor) -> Tensor:
    return x.repeat_interleave(2, dim=1)


def by_function(x: Tensor) -> Tensor:
    return torch.repeat_interleave(x, 2, -3)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("repeat", [by_expand, by_flatten, by_interleave, by_function])
def test_keys_and_values_are_not_repeated(repeat: Callable[[Tensor], Tensor], dynamic: bool) -> None:
    def program(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, repeat(k), repeat(v))

    arguments = heads(groups=2, grad=True)
    calls, gm = found_in(program, *arguments, dynamic=dynamic)
    assert {"auto+grouped", "flash+grouped", "auto+unmasked+grouped"} <= set(calls[0].variants)
    edited = rewritten(gm, (Rewrite("attention", 0, "flash+unmasked+grouped"),)).gm
    assert not any(word in edited.code for word in ("repeat_interleave", "expand", "reshape", "flatten"))
    runs = [
        (out := run(*given), *torch.autograd.grad(out.sin().sum(), given))
        for run, given in (
            (in_ways(program, "flash+unmasked+grouped", dynamic=dynamic), arguments),
            (program, arguments),
            (program, in_double(arguments)),
        )
    ]
    assert_as_accurate(*runs)


def of_groups(change: Callable[[Tensor], Tensor], values: Callable[[Tensor], Tensor] = by_expand) -> Program:
    return lambda q, k, v: F.scaled_dot_product_attention(q, change(k), values(v))


OTHERWISE: dict[str, tuple[Program, str]] = {
    "not at all": (of_groups(lambda x: torch.cat([x, x], 1)), "are not repeated for each head of a group"),
    "as tiles": (of_groups(lambda x: x.repeat(1, 2, 1, 1)), "are not repeated for each head of a group"),
    "as tiles by expand": (
        of_groups(lambda x: x[:, None].expand(2, 2, 2, 7, 8).reshape(2, 4, 7, 8)),
        "expanded in another way than heads of a group",
    ),
    "unequally": (
        of_groups(lambda x: x.repeat_interleave(torch.tensor([1, 3]), dim=1, output_size=4)),
        "repeated in another way than heads of a group",
    ),
    "along the keys": (
        of_groups(lambda x: x.repeat_interleave(2, 1).repeat_interleave(1, 2)),
        "repeated in another way than heads of a group",
    ),
    "values otherwise": (of_groups(by_expand, lambda x: x[:, :1].repeat_interleave(4, 1)), "are repeated differently"),
    "and cast": (of_groups(lambda x: by_expand(x.double()).float()), "are not repeated for each head of a group"),
}


@pytest.mark.parametrize("name", OTHERWISE)
def test_what_is_repeated_otherwise_stays(name: str) -> None:
    program, reason = OTHERWISE[name]
    (call,), _ = found_in(program, *heads(groups=2))
    assert reason in str(call.refusal("auto+grouped"))
    assert not any("grouped" in way for way in call.variants)


def test_what_is_repeated_before_it_is_written_to_stays() -> None:
    def program(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k, v = k * 1.0, v * 1.0
        keys, values = by_expand(k), by_expand(v)
        k.zero_()
        return F.scaled_dot_product_attention(q, keys, values)

    (call,), _ = found_in(program, *heads(groups=2))
    assert call.refusal("auto+grouped") == "what it repeats, or has repeated, may be written to"


@pytest.mark.parametrize("repeat", [by_expand, lambda x: x.repeat_interleave(2, 1)])
def test_what_is_written_to_after_it_was_repeated_stays(repeat: Callable[[Tensor], Tensor]) -> None:
    def program(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys, values = repeat(k), repeat(v)
        keys[:, 0] = 0.0
        return F.scaled_dot_product_attention(q, keys, values)

    (call,), _ = found_in(program, *heads(groups=2))
    assert call.refusal("auto+grouped") == "what it repeats, or has repeated, may be written to"


def test_heads_that_are_grouped_as_it_is() -> None:
    (call,), _ = found_in(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True), *heads(groups=2))
    assert call.refusal("auto+grouped") == "its heads are grouped as it is"


# copies


def test_copies_that_only_lay_out_go() -> None:
    def program(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        q, k, v = (each.transpose(1, 2).contiguous() for each in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v), v

    arguments = tuple(torch.randn(2, 6, 4, 8) for _ in range(3))
    (call,), gm = found_in(program, *arguments)
    assert {"auto+views", "flash+unmasked+views"} <= set(call.variants)
    edited = rewritten(gm, (Rewrite("attention", 0, "flash+views"),)).gm
    assert edited.code.count("contiguous") == 1, "the value is read elsewhere"
    assert_as_accurate(in_ways(program, "flash+views")(*arguments), program(*arguments), program(*in_double(arguments)))


def test_copies_that_are_no_such_copies_stay() -> None:
    def changed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        held = q * 1.0
        q = held.mT.contiguous().mT.contiguous()
        kept = k.transpose(1, 2).transpose(1, 2).clone()
        return F.scaled_dot_product_attention(q.contiguous(), kept, v)

    (call,), _ = found_in(changed, *heads())
    assert call.refusal("flash+views") == "no query, key or value is a copy that only lays it out"

    def written(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        held = q.transpose(1, 2) * 1.0
        query = held.transpose(1, 2).contiguous()
        held.zero_()
        return F.scaled_dot_product_attention(query, k, v)

    (call,), _ = found_in(written, *heads())
    assert call.refusal("flash+views") == "no query, key or value is a copy that only lays it out"
