"""Ways of attention on a GPU: the kernel that a way names really runs, and computes what eager computes, gradients too."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import GraphModule
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

import fuseplan
from agreement import assert_as_accurate, in_double
from fuseplan.capture.fx import flex
from fuseplan.measure.environment import Flags
from fuseplan.plan import Plan, Rewrite
from fuseplan.rewrites.apply import rewritten
from fuseplan.rewrites.attention.calls import AttentionCall, attention_calls
from fuseplan.rewrites.sites import Sites

Program = Callable[..., Any]
OPERATORS = {
    "cudnn": "_scaled_dot_product_cudnn_attention",
    "flash": "_scaled_dot_product_flash_attention",
    "efficient": "_scaled_dot_product_efficient_attention",
}
WINDOW = 64


class Ran(TorchDispatchMode):
    """Which attention operators ran, and with which keys."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.keys: list[torch.Size] = []
        self.padded = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if "attention" in name and "backward" not in name:
            self.names.append(name)
            self.keys.append(args[1].shape)
        self.padded += name in ("constant_pad_nd", "cat")
        return func(*args, **(kwargs or {}))


@dataclass
class Made:
    """A program with its calls of attention written in other ways, and what its last call has run."""

    program: Program
    calls: tuple[AttentionCall, ...] = ()
    ran: Ran = field(default_factory=Ran)

    def __call__(self, *arguments: Tensor) -> Any:
        return self.program(*arguments)


def in_ways(program: Program, arguments: tuple[Tensor, ...], chosen: Callable[[AttentionCall], str]) -> Made:
    """A program with its calls of attention written so, run as its graph stands."""
    made = Made(program)

    def backend(gm: GraphModule, _: Any) -> Callable[..., Any]:
        made.calls = attention_calls(gm)
        edited = rewritten(gm, tuple(Rewrite("attention", call.number, chosen(call)) for call in made.calls)).gm

        def run(*given: Any) -> Any:
            made.ran = Ran()
            with made.ran:  # here, since Dynamo leaves alone what runs inside of a mode
                return edited(*given)

        return run

    torch._dynamo.reset()
    made.program = torch.compile(program, backend=backend)
    made(*arguments)
    return made


def results(run: Program, arguments: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    out = run(*arguments)
    wanted = [each for each in arguments if each.requires_grad]
    return (out, *(torch.autograd.grad(out.sin().sum(), wanted) if wanted else ()))


def assert_right(program: Program, made: Made, arguments: tuple[Tensor, ...]) -> Ran:
    """As accurate as eager on its math path, within what is granted to any kernel; and what ran."""
    found = results(made, arguments)
    with sdpa_kernel(SDPBackend.MATH):
        eager, exact = results(program, arguments), results(program, in_double(arguments))
    assert_as_accurate(found, eager, exact)
    return made.ran


def heads(groups: int = 8, length: int = 256, *, grad: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(4)
    q, k, v = (
        torch.randn(4, count, length, 64, device="cuda", dtype=torch.bfloat16).requires_grad_(grad)
        for count in (8, groups, groups)
    )
    return q, k, v


def biased(q: Tensor, k: Tensor, v: Tensor, table: Tensor) -> Tensor:
    """Two layers with T5's bias: by position and head, permuted."""
    bias = table.permute(2, 0, 1)[None]
    first = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=1.0 / 8)
    return F.scaled_dot_product_attention(first, k, v, attn_mask=bias)


def table_of(length: int, *, grad: bool = False) -> Tensor:
    return torch.randn(length, length, 8, device="cuda", dtype=torch.bfloat16).requires_grad_(grad)


@pytest.mark.parametrize("length", [256, 250])
@pytest.mark.parametrize("learned", [False, True])
def test_a_bias_by_position_goes_to_a_fused_kernel(length: int, learned: bool) -> None:
    arguments = (*heads(length=length, grad=learned), table_of(length, grad=learned))
    with Ran() as written:
        biased(*arguments)
    assert not written.names, "or it need not be laid out any longer"
    made = in_ways(biased, arguments, lambda call: call.preferred)
    assert all(call.preferred.split("+")[1:] in (["rows"], ["aligned"]) for call in made.calls)
    ran = assert_right(biased, made, arguments)
    assert len(ran.names) == 2
    assert set(ran.names) <= ({OPERATORS["efficient"]} if learned else set(OPERATORS.values()))
    if OPERATORS["efficient"] in ran.names and length % 8:
        assert ran.padded == 1, "laid out once, not at each call"


def test_what_the_kernels_say_of_a_learned_bias() -> None:
    arguments = (*heads(grad=True), table_of(256, grad=True))
    call, _ = in_ways(biased, arguments, lambda call: "auto").calls
    assert call.refusal("efficient+rows") is None
    assert call.refusal("cudnn+rows") == "cudnn gives no gradient to a mask"
    assert call.refusal("flash+rows") is not None


@pytest.mark.parametrize("layout", ["rows", "aligned", "heads"])
@pytest.mark.parametrize("kernel", ["cudnn", "efficient"])
@pytest.mark.parametrize("length", [256, 250])
def test_each_layout_under_each_kernel_that_takes_it(kernel: str, layout: str, length: int) -> None:
    arguments = (*heads(length=length), table_of(length))
    call, _ = in_ways(biased, arguments, lambda call: "auto").calls
    way = f"{kernel}+{layout}"
    reason = call.refusal(way)
    if reason is not None:
        pytest.skip(reason)
    made = in_ways(biased, arguments, lambda call: way)
    assert set(assert_right(biased, made, arguments).names) == {OPERATORS[kernel]}


def as_preferred(program: Program, arguments: tuple[Tensor, ...]) -> Ran:
    """What a program runs with all its sites, called and written out, as they are preferred; its results are checked."""
    ran: list[Ran] = []

    def backend(gm: GraphModule, _: Any) -> Callable[..., Any]:
        edited = rewritten(gm, Sites.of(gm).preferring(Plan("eager")).rewrites).gm

        def run(*given: Any) -> Any:
            ran.append(Ran())
            with ran[-1]:
                return edited(*given)

        return run

    torch._dynamo.reset()
    found = results(torch.compile(program, backend=backend), arguments)
    with sdpa_kernel(SDPBackend.MATH):
        eager, exact = results(program, arguments), results(program, in_double(arguments))
    assert_as_accurate(found, eager, exact)
    return ran[-1]


def written_out(q: Tensor, k: Tensor, v: Tensor, table: Tensor) -> Tensor:
    return (q @ k.mT / 8 + table.permute(2, 0, 1)).softmax(-1) @ v


@pytest.mark.parametrize("asked", ["nothing", "cudnn", "warn only"])
@pytest.mark.parametrize("program", [biased, written_out])
def test_what_is_not_deterministic_is_not_chosen_either(program: Program, asked: str) -> None:
    arguments, flags = (*heads(), table_of(256)), Flags.here()
    try:
        if asked == "cudnn":
            torch.backends.cudnn.set_flags(_deterministic=True)
        elif asked == "warn only":
            torch.use_deterministic_algorithms(True, warn_only=True)
        with sdpa_kernel([SDPBackend.CUDNN_ATTENTION, SDPBackend.MATH], set_priority=True):
            ran = as_preferred(program, arguments)
    finally:
        flags.set()
    assert set(ran.names) == ({OPERATORS["cudnn"]} if asked == "nothing" else set())


def repeated(states: Tensor, times: int = 4) -> Tensor:
    batch, groups, length, size = states.shape
    states = states[:, :, None, :, :].expand(batch, groups, times, length, size)
    return states.reshape(batch, groups * times, length, size)


def grouped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    mask = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool, device=q.device).tril()
    return F.scaled_dot_product_attention(q, repeated(k), repeated(v), attn_mask=mask)


@pytest.mark.parametrize("kernel", ["auto", *OPERATORS])
@pytest.mark.parametrize("grad", [False, True])
def test_keys_of_groups_are_not_repeated(kernel: str, grad: bool) -> None:
    arguments = heads(groups=2, grad=grad)
    (call,) = in_ways(grouped, arguments, lambda call: call.preferred).calls
    way = f"{kernel}+causal+grouped"
    reason = call.refusal(way)
    assert reason is None or kernel in ("cudnn", "efficient"), reason
    if reason is not None:
        pytest.skip(reason)
    made = in_ways(grouped, arguments, lambda call: way)
    ran = assert_right(grouped, made, arguments)
    assert set(ran.names) <= ({OPERATORS[kernel]} if kernel != "auto" else set(OPERATORS.values()))
    if kernel != "efficient":  # before which PyTorch may repeat them itself
        assert ran.keys == [torch.Size([4, 2, 256, 64])]


def windowed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    at = torch.arange(q.shape[-2], device=q.device)
    ahead = at[None, :] - at[:, None]
    mask = (ahead <= 0) & (ahead > -WINDOW)
    return F.scaled_dot_product_attention(q, repeated(k), repeated(v), attn_mask=mask)


@pytest.mark.parametrize("way", ["flash+window", "flash+window+grouped"])
@pytest.mark.parametrize("grad", [False, True])
def test_windows_are_skipped_by_flash_attention(way: str, grad: bool) -> None:
    arguments = heads(groups=2, length=512, grad=grad)
    made = in_ways(windowed, arguments, lambda call: way)
    (call,) = made.calls
    assert (call.proof.window.left, call.proof.window.right) == (WINDOW - 1, 0)  # type: ignore[union-attr]
    ran = assert_right(windowed, made, arguments)
    assert ran.names == ["_flash_attention_forward"]
    assert ran.keys[0][2] == (2 if "grouped" in way else 8)


@pytest.mark.parametrize("way", ["flex+window", "flex+window+grouped"])
@pytest.mark.parametrize("grad", [False, True])
def test_windows_are_skipped_by_flex_attention(way: str, grad: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flex, "_RAN", set())
    arguments = heads(groups=2, length=512, grad=grad)
    failed = set(flex._FAILED)
    made = in_ways(windowed, arguments, lambda call: way)
    assert_right(windowed, made, arguments)
    assert failed == flex._FAILED
    assert {shapes.trains for shapes in flex._RAN} == ({False, True} if grad else {False})


def in_documents(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    document, places = torch.arange(q.shape[-2], device=q.device) // 96, torch.arange(q.shape[-2], device=q.device)
    mask = (document[:, None] == document) & (places[:, None] >= places)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


@pytest.mark.parametrize("grad", [False, True])
def test_documents_are_skipped_by_flex_attention(grad: bool) -> None:
    arguments = heads(length=512, grad=grad)
    failed = set(flex._FAILED)
    made = in_ways(in_documents, arguments, lambda call: "flex+documents")
    assert_right(in_documents, made, arguments)
    assert failed == flex._FAILED


def test_flex_attention_is_not_compiled_while_a_graph_is_captured() -> None:
    q, k, v = heads(length=640)
    with (
        pytest.raises(RuntimeError, match="call the program once before"),
        torch.cuda.graph(torch.cuda.CUDAGraph()),
    ):
        torch.ops.fuseplan.sdpa_in_sight(q, k, v, 9, 0, [], None)


def copied(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (each.transpose(1, 2).contiguous() for each in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v)


@pytest.mark.parametrize("kernel", ["auto", *OPERATORS])
def test_kernels_read_views_as_well(kernel: str) -> None:
    arguments = tuple(each.detach().transpose(1, 2).contiguous().requires_grad_() for each in heads())
    made = in_ways(copied, arguments, lambda call: f"{kernel}+views")
    ran = assert_right(copied, made, arguments)
    assert set(ran.names) <= ({OPERATORS[kernel]} if kernel != "auto" else set(OPERATORS.values()))
    assert made.calls[0].refusal("math+views") == "no fused kernel takes it so"


@pytest.mark.parametrize("launch", ["plain", "cudagraph"])
@pytest.mark.parametrize("host", ["inductor", "aten"])
@pytest.mark.parametrize(
    ("program", "ways"),
    [
        (biased, ("auto+rows",) * 2),
        (windowed, ("flash+window+grouped",)),
        (windowed, ("flex+window+grouped",)),
        (grouped, ("flash+causal+grouped",)),
    ],
    ids=["biased", "windowed", "windowed under flex", "grouped"],
)
@pytest.mark.parametrize("grad", [False, True])
def test_whole_plans_run_under_each_host_and_launch(
    program: Program, ways: tuple[str, ...], host: str, launch: str, grad: bool
) -> None:
    arguments = heads(groups=8 if program is biased else 2, grad=grad)
    if program is biased:
        arguments = (*arguments, table_of(256))  # type: ignore[assignment]
    rewrites = tuple(Rewrite("attention", site, way) for site, way in enumerate(ways))
    torch._dynamo.reset()
    made = fuseplan.compile(program, plan=Plan(host, rewrites, launch=launch))
    with sdpa_kernel(SDPBackend.MATH):
        eager, exact = results(program, arguments), results(program, in_double(arguments))
    for _ in range(3):  # the third call replays what the second has recorded
        found = tuple(each.clone() for each in results(made, arguments))
    assert_as_accurate(found, eager, exact)
