"""Programs whose written-out attention is looked for and rewritten, and what the tests of that look at."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from agreement import assert_as_accurate, in_double
from fuseplan.plan import Rewrite
from fuseplan.rewrites.apply import rewritten
from fuseplan.rewrites.written.missed import MissedSite
from fuseplan.rewrites.written.site import WrittenAttention, find_written

KIND = "written-attention"
KERNELS = ("math", "flash", "auto")


@dataclass
class Backend:
    """Rewrites all that it finds in one way, where that is legal, and runs the graph as it then is."""

    way: str | None = "math"
    sites: list[WrittenAttention] = field(default_factory=list)
    missed: list[MissedSite] = field(default_factory=list)
    targets: list[str] = field(default_factory=list)

    def __call__(self, gm: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        self.sites, self.missed = find_written(gm)
        ways = {site: self.way or site.preferred for site in self.sites}
        legal = [Rewrite(KIND, site.number, way) for site, way in ways.items() if site.refusal(way) is None]
        new = rewritten(gm, tuple(legal)).gm if legal else gm
        self.targets = [getattr(node.target, "__name__", str(node.target)) for node in new.graph.nodes]
        return new.forward

    @property
    def reasons(self) -> list[str]:
        """Why softmaxes are no sites."""
        return [miss.reason for miss in self.missed]


def compiled(
    function: Callable[..., Any], way: str | None = "math", **options: Any
) -> tuple[Callable[..., Any], Backend]:
    torch._dynamo.reset()
    backend = Backend(way)
    return torch.compile(function, backend=backend, fullgraph=True, **options), backend


def step(function: Callable[..., Any], inputs: Sequence[Any]) -> tuple[Tensor, list[Tensor | None]]:
    """What a function gives, and the gradients of its inputs."""
    leaves = [each for each in inputs if isinstance(each, Tensor) and each.requires_grad]
    result = function(*inputs)
    if not leaves:
        return result, []
    weight = torch.linspace(-1, 1, result.numel(), dtype=torch.float64).reshape(result.shape)
    return result.detach(), list(torch.autograd.grad((result * weight.to(result)).sum(), leaves))


def assert_same_step(function: Callable[..., Any], run: Callable[..., Any], inputs: Sequence[Any]) -> None:
    def both(inputs: Sequence[Any]) -> tuple[Any, Any]:
        return step(function, inputs), step(function, in_double(tuple(inputs)))

    draws = [both([_moved(each, seed) for each in inputs]) for seed in range(3)]
    assert_as_accurate(step(run, inputs), *both(inputs), draws)


def _moved(value: Any, seed: int) -> Any:
    """A tensor of floats a few units in the last place nearer to zero; anything else as it is."""
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return value
    less = torch.rand(value.shape, generator=torch.Generator().manual_seed(seed)) * 4 * torch.finfo(value.dtype).eps
    return (value.detach() * (1 - less).to(value)).requires_grad_(value.requires_grad)


def found_in(function: Callable[..., Any], *inputs: Any) -> Backend:
    run, backend = compiled(function, None)
    run(*inputs)
    return backend


def missed_in(function: Callable[..., Any], *inputs: Any) -> str:
    """The reason why the one softmax of a function is no site; its result must be what it is all the same."""
    backend = found_in(function, *inputs)
    assert not backend.sites
    (reason,) = backend.reasons
    return reason


def qkv(*shape: int, grad: bool = True, dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    drawn = [torch.randn(shape or (2, 3, 8, 16), generator=generator).to(dtype) for _ in range(3)]
    return tuple(each.requires_grad_(grad) for each in drawn)
