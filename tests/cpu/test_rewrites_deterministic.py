"""Who asks for what is deterministic gets no kernel that is not, whether a way names it or PyTorch chooses it there.

There is no GPU here: a device is played that chooses among its kernels by the rules of NVIDIA's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.testing import assert_close

import fuseplan
from fuseplan.backend import programs_of
from fuseplan.explain import compiled_by
from fuseplan.measure.environment import Flags, environment
from fuseplan.plan import Plan, Rewrite
from fuseplan.rewrites.attention import device
from fuseplan.rewrites.found import SiteFound
from fuseplan.rewrites.sites import Sites
from fuseplan.tuning_db import Places, Store, StoredPlan
from rewriting import dynamo_graph

ENABLED = device.ENABLED


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    flags = Flags.here()
    yield
    flags.set()


@pytest.fixture(autouse=True)
def cudnn_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels want the rows of a mask in one piece, flash none at all. cuDNN comes first, but under strict determinism."""

    def choice(key: Any, *given: Any) -> int:
        mask = given[3]
        learned = mask is not None and mask.requires_grad
        takes = {
            "cudnn": not learned and not _strict(),
            "flash": mask is None,
            "efficient": True,
        }
        fused = mask is None or mask.stride(-1) == 1
        found = next((name for name, can in takes.items() if fused and can and ENABLED[name]()), "math")
        return int(device.BACKENDS[found].value)

    monkeypatch.setattr(device, "choice_of_device", choice)


def _strict() -> bool:
    return torch.are_deterministic_algorithms_enabled() and not torch.is_deterministic_algorithms_warn_only_enabled()


def cudnn_deterministic() -> None:
    torch.backends.cudnn.set_flags(_deterministic=True)


ASKED: dict[str, Callable[[], None]] = {
    "nothing": lambda: None,
    "cudnn": cudnn_deterministic,
    "warn only": partial(torch.use_deterministic_algorithms, True, warn_only=True),
    "strict": partial(torch.use_deterministic_algorithms, True),
}


def told(function: Callable[..., Any], *inputs: Any) -> SiteFound:
    (site,) = Sites.of(dynamo_graph(function, *inputs)).told()
    return site


def qkv(*, grad: bool = False) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randn(2, 4, 8, 8, generator=generator).requires_grad_(grad) for _ in range(3))


def written_out(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT / 8**0.5).softmax(-1) @ v


def with_a_bias(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    """As Swin adds one."""
    return (q @ k.mT / 8**0.5 + bias).softmax(-1) @ v


def by_position(q: Tensor, k: Tensor, v: Tensor, table: Tensor) -> Tensor:
    """As T5 gives one to a call: no kernel takes it as it lies."""
    return F.scaled_dot_product_attention(q, k, v, attn_mask=table.permute(2, 0, 1))


def called(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v)


@pytest.mark.parametrize(
    ("function", "more", "preferred"),
    [
        # written out, nothing but matmuls and a softmax runs; without a mask each kernel takes it
        (written_out, (), {"nothing": "auto+unmasked", "cudnn": "flash+unmasked", "warn only": "flash+unmasked", "strict": "auto+unmasked"}),
        # memory-efficient attention is deterministic where nothing asks it to be, and where that is strict
        (with_a_bias, ((8, 8),), {"nothing": "auto", "cudnn": "efficient", "warn only": None, "strict": "auto"}),
        (by_position, ((8, 8, 4),), {"nothing": "auto+rows", "cudnn": "efficient+rows", "warn only": None, "strict": "auto+rows"}),
        # the program itself lets PyTorch choose, which the rewrite changes nothing about
        (called, (), dict.fromkeys(ASKED, "auto+unmasked")),
    ],
    ids=["written out", "with a bias", "by position", "called"],
)  # fmt: skip
@pytest.mark.parametrize("asked", ASKED)
def test_what_pytorch_chooses_must_be_deterministic_too(
    function: Callable[..., Any], more: tuple[tuple[int, ...], ...], preferred: dict[str, str | None], asked: str
) -> None:
    ASKED[asked]()
    with torch.no_grad():
        site = told(function, *qkv(), *(torch.randn(shape) for shape in more))
    assert site.preferred == preferred[asked]
    if asked in ("cudnn", "warn only") and function is not called:
        refused = [way for way, reason in site.refused.items() if "deterministic" in reason and way.startswith("auto")]
        assert refused
        assert not {way for way in site.ways if way.startswith("cudnn")}


def test_a_bias_that_is_learned_stays_out_of_a_kernel_that_only_warns() -> None:
    bias = torch.randn(8, 8, requires_grad=True)
    assert told(with_a_bias, *qkv(grad=True), bias).preferred == "auto"
    torch.use_deterministic_algorithms(True, warn_only=True)
    site = told(with_a_bias, *qkv(grad=True), bias)
    assert site.preferred is None
    assert site.refused["auto"] == site.refused["efficient"]
    assert site.refused["auto"].startswith("efficient is not deterministic where that only warns")


def test_a_context_of_the_caller_says_what_is_chosen_from() -> None:
    cudnn_deterministic()
    contexts: dict[str | None, AbstractContextManager[None]] = {
        "auto+unmasked": sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]),
        None: sdpa_kernel([SDPBackend.CUDNN_ATTENTION, SDPBackend.MATH]),
    }
    for preferred, context in contexts.items():
        with context, torch.no_grad():
            assert told(written_out, *qkv()).preferred == preferred


def test_a_stored_plan_gives_way_to_a_kernel_that_is_deterministic(tmp_path: Path) -> None:
    def run(**options: Any) -> Any:
        torch._dynamo.reset()
        compiled, inputs = fuseplan.compile(written_out, **options), qkv()
        with torch.no_grad():
            assert_close(compiled(*inputs), written_out(*inputs))
        (program,) = programs_of(compiled_by(compiled))
        return program

    plan = Plan("inductor", (Rewrite("written-attention", 0, "auto+unmasked"),))
    Store(Places(tmp_path / "tuning.db")).add_plan(
        StoredPlan(str(run(plan="inductor").key), environment("cpu"), plan, wall_us=1.0)
    )
    assert [one.way for one in run(db=tmp_path / "tuning.db").plan.rewrites] == ["auto+unmasked"]
    cudnn_deterministic()
    with pytest.warns(UserWarning, match=r"is flash\+unmasked, not auto\+unmasked: cudnn is not deterministic"):
        program = run(db=tmp_path / "tuning.db")
    assert [one.way for one in program.plan.rewrites] == ["flash+unmasked"]
    with pytest.raises(Exception, match=r"cannot be auto\+unmasked: cudnn is not deterministic"):
        run(plan=plan)
