"""Kernels of our own are compiled while the program is, by Inductor's processes, and not when they are first launched."""

from __future__ import annotations

from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch
from torch import Tensor

import fuseplan.capture.fx.depthwise
import fuseplan.capture.fx.few_rows
import fuseplan.capture.fx.split_keys  # noqa: F401 -- they define the operators

pytestmark = pytest.mark.gpu


@pytest.fixture
def compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bool]]:
    """The kernels that are compiled in this process, each with whether Triton's cache had it: an empty one, for this test alone."""
    import triton
    from triton.backends.nvidia import compiler

    from fuseplan.kernels import launch

    compiler.get_ptxas_version.cache_clear()  # a kernel may have been launched before Inductor chose another assembler
    found: list[tuple[str, bool]] = []

    def listen(*, src: Any, cache_hit: bool, **_: Any) -> None:
        found.append((getattr(src, "name", ""), cache_hit))

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(triton.knobs.compilation, "listener", listen)
    monkeypatch.setattr(launch, "_known", set())
    return found


@torch.compile
def convolved(x: Tensor, weight: Tensor) -> Tensor:
    found: Tensor = torch.ops.fuseplan.depthwise(x, weight, None, 2, 1)
    return found.relu()


def test_all_kernels_of_a_program_are_found_when_they_are_launched(compiled: list[tuple[str, bool]]) -> None:
    x = torch.randn(2, 24, 23, 29, device="cuda", dtype=torch.float16).to(memory_format=torch.channels_last)
    weight = torch.randn(24, 1, 4, 4, device="cuda", dtype=torch.float16, requires_grad=True)
    convolved(x.requires_grad_(), weight).sum().backward()
    of_ours = {"_forward", "_of_input", "_of_weight", "_summed"}
    assert dict(one for one in compiled if one[0] in of_ours) == dict.fromkeys(of_ours, True)
    assert x.grad is not None
    assert weight.grad is not None


@torch.compile
def decoded(x: Tensor, weight: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    parts = torch.ops.fuseplan.few_rows(x, [weight], [], 2)
    return parts.sum(0).relu(), torch.ops.fuseplan.sdpa_split_keys(q, k, v, mask, None).relu()


def test_so_are_those_of_a_step_of_decoding(compiled: list[tuple[str, bool]]) -> None:
    x, weight = (torch.randn(*shape, device="cuda", dtype=torch.bfloat16) for shape in ((3, 1, 320), (48, 320)))
    q, k = (torch.randn(*shape, device="cuda", dtype=torch.bfloat16) for shape in ((3, 6, 1, 48), (3, 2, 200, 48)))
    mask = (torch.arange(200, device="cuda") < 90).expand(3, 1, 1, 200)
    decoded(x, weight, q, k, k, mask)
    of_ours = {"_multiply", "_attend", "_join"}
    assert dict(one for one in compiled if one[0] in of_ours) == dict.fromkeys(of_ours, True)


def test_what_triton_has_on_disk_is_not_compiled_again(
    compiled: list[tuple[str, bool]], monkeypatch: pytest.MonkeyPatch
) -> None:
    from fuseplan.kernels import launch

    def once() -> None:
        torch._dynamo.reset()
        monkeypatch.setattr(launch, "_known", set())
        x = torch.randn(2, 24, 19, 31, device="cuda", dtype=torch.float16).to(memory_format=torch.channels_last)
        convolved(x, torch.randn(24, 1, 3, 3, device="cuda", dtype=torch.float16))

    pool, asked = launch._pool(), list[Any]()
    submit = pool.submit

    def noted(job: Any, *rest: Any) -> Any:
        asked.append(job)
        return submit(job, *rest)

    once()
    monkeypatch.setattr(pool, "submit", noted)
    once()
    assert launch.compiled not in asked


def test_threads_that_trace_leave_triton_as_it_was(compiled: list[tuple[str, bool]]) -> None:
    import triton
    from torch._subclasses import FakeTensorMode

    def trace(channels: int) -> None:
        with FakeTensorMode():
            x = torch.empty(2, channels, 15, 15, device="cuda", dtype=torch.float16)
            weight = torch.empty(channels, 1, 3, 3, device="cuda", dtype=torch.float16)
            torch.ops.fuseplan.depthwise(x.to(memory_format=torch.channels_last), weight, None, 1, 1)

    threads = [Thread(target=trace, args=(channels,)) for channels in (8, 16, 32, 64, 128)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert triton.knobs.runtime.jit_cache_hook is None


def test_where_inductor_has_no_processes_launches_compile(
    compiled: list[tuple[str, bool]], monkeypatch: pytest.MonkeyPatch
) -> None:
    from fuseplan.kernels import launch

    monkeypatch.setattr(launch, "_pool", lambda: None)
    torch._dynamo.reset()
    x = torch.randn(2, 40, 21, 27, device="cuda", dtype=torch.float16).to(memory_format=torch.channels_last)
    weight = torch.randn(40, 1, 5, 5, device="cuda", dtype=torch.float16)
    found = convolved(x, weight)
    assert ("_forward", False) in compiled
    exact = torch.conv2d(x.double(), weight.double(), None, 2, 1, groups=40).relu()
    assert (found - exact).abs().max() < 0.1
