"""Which steps of training run through a CUDA graph, seen without a GPU: the trees of PyTorch are played by a stub."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd
from torch.fx import GraphModule
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.checkpoint import checkpoint

from fuseplan.runtime import capture_place, cudagraph
from fuseplan.stats import stats


class Captured:
    """A graph that was captured, in the place that the tree has come to."""

    def __init__(self, trees: Trees, function: str = "") -> None:
        self.trees = trees
        self.parent: Captured | None = None
        self.wrapped_function = SimpleNamespace(id=function)
        self.outputs_weakrefs: list[StorageWeakRef] = []

    def path_live_weakrefs(self) -> Sequence[Any]:
        return [self] if self.trees.alive else [ref for ref in self.outputs_weakrefs if not ref.expired()]


class Trees:
    """What a graph has made stays, since its memory is used by nothing else. A step may be one that no graph can be of."""

    def __init__(self) -> None:
        self.current_node = Captured(self)
        self.made: list[Any] = []
        self.pending = False
        self.alive = False
        self.refuses = False
        """Has reasons of its own not to capture."""
        self.trains = True
        """A forward waits for its backward."""
        self.reuses = False
        """A new step begins over what an earlier one has made, if nobody holds that."""

    def can_start_new_generation(self) -> bool:
        return not self.pending

    def set_to_running_backward(self) -> None:
        self.pending = False

    def _get_cuda_graph_recorded_tensor_checker(self) -> Callable[[Tensor], bool]:
        return lambda tensor: any(tensor is one for one in self.made)


class Training:
    """Runs a program under the guards, and keeps a log of which of its steps were captured."""

    def __init__(self, module: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
        torch._dynamo.reset()
        self.trees, self.log = Trees(), list[str]()
        self.here: Trees | None = self.trees
        """Those of the thread that calls."""
        monkeypatch.setattr(cudagraph, "get_manager", lambda *args, **options: self.here)
        monkeypatch.setattr(capture_place, "get_manager", lambda *args, **options: self.here)
        monkeypatch.setattr(capture_place, "is_capturing", lambda: False)
        monkeypatch.setattr(capture_place, "follow", lambda manager, device: None)
        monkeypatch.setattr(cudagraph, "cudagraphify", self.cudagraphify)
        monkeypatch.setattr(cudagraph, "_obstacle", lambda gm: None)
        monkeypatch.setattr(cudagraph, "_lie_at", lie_at)
        monkeypatch.setattr(cudagraph, "_device_index", lambda gm: 0)
        monkeypatch.setattr(cudagraph, "SMALL", 0)  # of what is copied nobody holds the original
        self.launch = cudagraph.CudaGraphLaunch([])
        self.saved: list[str] = []
        self.weight = next(module.parameters()) if isinstance(module, nn.Module) else torch.empty(0)
        self.call = torch.compile(module, backend=aot_autograd(fw_compiler=self.forward, bw_compiler=self.backward))

    def forward(self, gm: GraphModule, _: Sequence[Any]) -> Any:
        return self.launch.wrap("forward", gm, self.plain(gm, "forward plain"))

    def backward(self, gm: GraphModule, _: Sequence[Any]) -> Any:
        self.saved = [node.name for node in gm.graph.find_nodes(op="placeholder")]
        return self.launch.wrap("backward", gm, self.plain(gm, "backward plain"))

    def cudagraphify(self, plain: Any, *, is_backward: bool, **_: Any) -> Any:
        """What torch makes of a callable: here it runs as it is, and says so."""

        def captured(args: list[Any]) -> Any:
            outputs = plain(args)
            if self.trees.refuses and not is_backward:
                self.log[-1] = "forward, not captured by the trees"
                return outputs
            self.log[-1] = "backward captured" if is_backward else "forward captured"
            self.trees.pending = not is_backward and self.trees.trains
            self.trees.made += () if is_backward else outputs
            self.trees.current_node = Captured(self.trees, self.log[-1])  # each puts what it makes where no other does
            if self.trees.reuses:
                self.trees.made.clear()
                storages = [one.untyped_storage() for one in outputs if isinstance(one, Tensor)]
                self.trees.current_node.outputs_weakrefs = [StorageWeakRef(one) for one in storages]
            return outputs

        return boxed(captured)

    def plain(self, gm: GraphModule, word: str) -> Any:
        def call(args: list[Any]) -> Any:
            self.log.append(word)
            return gm(*args)

        return boxed(call)

    def step(self, x: Tensor) -> None:
        self.call(x).square().sum().backward()


def boxed(call: Callable[[list[Any]], Any]) -> Any:
    call._boxed_call = True  # type: ignore[attr-defined]
    return call


def lie_at(args: Sequence[Any], pointers: Sequence[int], chosen: Sequence[int]) -> bool:
    """As torch does it where it is built for GPUs."""
    return all(args[i].data_ptr() == pointers[i] for i in chosen)


PLAIN, CAPTURED = ["forward plain", "backward plain"], ["forward captured", "backward captured"]
MODULES: dict[str, Callable[[], nn.Module]] = {
    "views of parameters": lambda: nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)),
    "a softmax": lambda: nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 4), nn.Softmax(-1)),
    "statistics": lambda: nn.Sequential(nn.Conv1d(8, 8, 3, padding=1), nn.BatchNorm1d(8), nn.ReLU()),
    "nothing but inputs": lambda: nn.Linear(8, 8),
}


@pytest.fixture(params=MODULES)
def training(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Training:
    return Training(MODULES[request.param](), monkeypatch)


def test_a_backward_is_captured_if_its_forward_was(training: Training) -> None:
    x = torch.randn(4, 8, 8)
    for kept in (False, True, False, True):
        training.trees.alive = kept  # the caller holds an output of the step before
        training.step(x)
    assert training.log == [*CAPTURED, *PLAIN, *CAPTURED, *PLAIN]


def test_views_of_parameters_are_saved_and_say_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training(MODULES["views of parameters"](), monkeypatch)
    training.step(torch.randn(4, 8))
    views = [name for name in training.saved if name.startswith(("permute", "t_"))]
    assert views
    assert training.launch.made.outputs
    assert not set(views) & set(training.launch.made.outputs)


def test_two_forwards_of_which_one_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training(nn.Sequential(nn.Linear(8, 16), nn.GELU()), monkeypatch)
    a = training.call(torch.randn(4, 8))
    training.trees.alive, training.trees.pending = True, False
    b = training.call(torch.randn(4, 8))
    training.trees.pending = True
    b.sum().backward()
    training.trees.pending = True
    a.sum().backward()
    assert training.log == ["forward captured", "forward plain", "backward plain", "backward captured"]


def test_a_second_backward_begins_no_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would begin one over what its own forward has made; and the first leaves that where it is."""
    training = Training(nn.Sequential(nn.Linear(8, 16), nn.GELU()), monkeypatch)
    out = training.call(torch.randn(4, 8)).sum()
    out.backward(retain_graph=True)
    training.trees.alive = True
    out.backward()
    assert training.log == ["forward captured", "backward plain", "backward plain"]


def test_a_forward_that_the_trees_do_not_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training(MODULES["views of parameters"](), monkeypatch)
    training.trees.refuses = True
    training.step(torch.randn(4, 8))
    assert training.log == ["forward, not captured by the trees", "backward plain"]


def test_what_was_saved_and_lies_elsewhere_now(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some of it was moved to the host, and back: the large ones."""
    training = Training(MODULES["a softmax"](), monkeypatch)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone() if t.numel() > 20 else t, lambda t: t):
        out = training.call(torch.randn(4, 8)).square().sum()
    out.backward()
    assert training.log == ["forward captured", "backward plain"]


def test_under_checkpointing_the_step_is_as_any(monkeypatch: pytest.MonkeyPatch) -> None:
    inner = MODULES["views of parameters"]()
    training = Training(lambda x: checkpoint(inner, x, use_reentrant=False), monkeypatch)
    training.step(torch.randn(4, 8, requires_grad=True))
    assert training.log == CAPTURED


def test_another_thread_than_the_one_that_has_captured_runs_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its trees know nothing of what is held, and two threads would write into one memory."""
    training = Training(MODULES["a softmax"](), monkeypatch)
    x = torch.randn(4, 8)
    training.step(x)
    for here in (Trees(), None):
        training.here = here
        training.step(x)
    training.here = training.trees
    training.step(x)
    assert training.log == [*CAPTURED, *PLAIN, *PLAIN, *CAPTURED]
    assert stats()["calls run plain in another thread, or while their caller captures"] >= 2


def test_a_thread_that_torch_knows_no_trees_in_runs_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*args: object, **options: object) -> None:
        raise AssertionError

    training = Training(MODULES["a softmax"](), monkeypatch)
    monkeypatch.setattr(capture_place, "get_manager", unknown)
    training.step(torch.randn(4, 8))
    assert training.log == PLAIN


def test_a_caller_that_captures_a_graph_of_its_own_has_the_program_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training(MODULES["a softmax"](), monkeypatch)
    x = torch.randn(4, 8)
    for capturing in (False, True, False):
        monkeypatch.setattr(capture_place, "is_capturing", lambda now=capturing: now)
        training.step(x)
    assert training.log == [*CAPTURED, *PLAIN, *CAPTURED]


@pytest.mark.parametrize("held", [True, False])
def test_forwards_without_a_backward_are_not_captured_without_end(monkeypatch: pytest.MonkeyPatch, held: bool) -> None:
    """Where nothing is held, the trees begin anew by themselves."""
    monkeypatch.setattr(cudagraph, "DEEPEST", 3)
    training = Training(MODULES["a softmax"](), monkeypatch)
    training.trees.alive = held
    training.trees.pending = True
    for _ in range(5):
        before = training.trees.current_node
        training.call(torch.randn(4, 8))
        if training.trees.current_node is not before:
            training.trees.current_node.parent = before
    assert training.log == ["forward captured"] * (2 if held else 5) + ["forward plain"] * (3 if held else 0)


def test_of_what_is_held_all_the_time_who_asks_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture_place, "OFTEN", 3)
    training = Training(MODULES["a softmax"](), monkeypatch)
    training.trees.alive = True
    for _ in range(5):
        training.call(torch.randn(4, 8))
    (remark,) = training.launch.remarks
    assert "the launch plain suits such a program better" in remark


def large_and_larger(x: Tensor) -> tuple[Tensor, Tensor]:
    return x @ x.mT, x + 1


def test_what_is_held_from_the_first_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training(large_and_larger, monkeypatch)
    training.trees.reuses, training.trees.trains = True, False
    inputs = [torch.randn(4, 4) for _ in range(capture_place.LEARNING + 5)]
    with torch.no_grad():
        held = [training.call(x)[0] for x in inputs]
    assert training.log == ["forward captured"] * len(inputs)
    for x, y in zip(inputs, held, strict=True):
        assert torch.equal(y, x @ x.mT)
    assert training.launch.place.outputs.held == (0,)  # nobody held the other
    (remark,) = training.launch.remarks
    assert "output 0 is copied" in remark


def test_what_is_held_later_runs_plain_once_and_is_copied_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop that overwrites the last output once it has the next holds one at each call."""
    training = Training(large_and_larger, monkeypatch)
    training.trees.reuses, training.trees.trains = True, False
    x = torch.randn(4, 4)
    with torch.no_grad():
        for _ in range(capture_place.LEARNING + 2):
            training.call(x)
        assert training.launch.place.outputs.held == ()
        training.log.clear()
        held = training.call(x)[1]
        for _ in range(4):
            held = training.call(x)[1]
    assert training.log == ["forward captured", "forward plain", *["forward captured"] * 3]
    assert training.launch.place.outputs.held == (1,)
    assert torch.equal(held, x + 1)


def add_up(training: Training, zero: str, steps: int) -> Tensor:
    """Gradients of so many steps, with zero_grad() where it says; returns what eager would have at their end."""
    for number in range(steps):
        if zero == "first" or (zero == "every third" and number % 3 == 0):
            training.weight.grad = None
        x = torch.full((4, 8), float(number))
        loss = (training.call(x) * x).sum()
        if zero == "behind the forward":
            training.weight.grad = None
        loss.backward()
        if zero == "to zero" and training.weight.grad is not None:
            training.weight.grad.zero_()
    last = {"never": range(steps), "to zero": (), "every third": range((steps - 1) // 3 * 3, steps)}
    return sum((torch.full((8, 8), 4.0 * n * n) for n in last.get(zero, (steps - 1,))), torch.zeros(8, 8))


@pytest.mark.parametrize("zero", ["first", "behind the forward", "every third", "never", "to zero"])
def test_gradients_are_copied_where_they_are_held_across_steps(monkeypatch: pytest.MonkeyPatch, zero: str) -> None:
    """All steps are captured, wherever a loop has its zero_grad(); what is added to a gradient that is held is not copied."""
    training = Training(nn.Linear(8, 8, bias=False), monkeypatch)
    training.trees.reuses = True
    copies: list[int] = []
    copies_of = capture_place.copies_of

    def counted(tensors: Sequence[Tensor]) -> list[Tensor]:
        copies.append(len(tensors))
        return copies_of(tensors)

    add_up(training, zero, capture_place.LEARNING)
    training.log.clear()
    monkeypatch.setattr(capture_place, "copies_of", counted)
    expected = add_up(training, zero, 9)
    assert training.log == CAPTURED * 9
    assert training.weight.grad is not None
    if zero not in {"never", "to zero"}:
        assert torch.equal(training.weight.grad, expected)
    of_gradients = copies[1::2]
    assert of_gradients == {"behind the forward": [1] * 9, "every third": [1, 0, 0] * 3}.get(zero, [0] * 9)
    held = training.launch.place.gradients.held
    assert held == (() if zero == "first" else (0,))
    assert len(training.launch.remarks) == len(held)


def test_what_is_given_lives_until_the_next_step_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the backward would be captured while it is let go, and write over what a later caller holds."""
    training = Training(nn.Sequential(nn.Linear(8, 8), nn.GELU()), monkeypatch)
    seen = []

    def looking(plain: Any, *, is_backward: bool, **told: Any) -> Any:
        captured = training.cudagraphify(plain, is_backward=is_backward, **told)

        def call(args: list[Any]) -> Any:
            seen.append(len(training.launch.place.outputs.originals))
            return captured(args)

        return boxed(call)

    monkeypatch.setattr(cudagraph, "cudagraphify", looking)
    for _ in range(capture_place.LEARNING + 2):
        training.step(torch.randn(4, 8))
    assert training.log == CAPTURED * (capture_place.LEARNING + 2)
    assert seen == [0, 1] * (capture_place.LEARNING + 2)  # in each forward, and in each backward


def test_a_step_is_over_once_no_backward_can_come() -> None:
    held = torch.ones(2)
    ref, copies = StorageWeakRef(held.untyped_storage()), capture_place.Copies((0,), trains=True)
    copies.give([torch.ones(2)], ref)
    copies.let_go(begins=False)
    assert len(copies.originals) == 1
    del held
    copies.let_go(begins=False)
    assert copies.originals == []


def test_autograd_holds_none_of_the_tensors_that_the_trees_give_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """The trees would not see it: what autograd has saved is another tensor of the same memory, and so is what a caller gets."""
    training = Training(nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8)), monkeypatch)
    given: list[Tensor] = []
    plain = training.plain

    def noted(gm: GraphModule, word: str) -> Any:
        def call(args: list[Any]) -> Any:
            outputs = plain(gm, word)(args)
            given.extend(outputs if word == "forward plain" else ())
            return outputs

        return boxed(call)

    monkeypatch.setattr(training, "plain", noted)
    for _ in range(capture_place.LEARNING):
        training.call(torch.randn(4, 8))
    given.clear()
    out = training.call(torch.randn(4, 8))
    outputs = training.launch.place.outputs
    assert (outputs.trains, outputs.held) == (True, ())
    (large,) = outputs.large
    assert out.data_ptr() == given[large].data_ptr()  # it is no copy any more
    assert out.grad_fn is not None
    assert given[large].grad_fn is None


@pytest.mark.parametrize(("inner", "small"), [(lambda x: x.exp() * 2, ()), (torch.exp, (0,))])
def test_what_alone_is_saved_is_copied_for_its_caller(
    monkeypatch: pytest.MonkeyPatch, inner: Callable[[Tensor], Tensor], small: tuple[int, ...]
) -> None:
    """Nothing says then when the step is over."""
    training = Training(inner, monkeypatch)
    facts: list[Any] = []
    wrapping = training.launch.wrapping
    monkeypatch.setattr(training.launch, "wrapping", lambda found: (facts.append(found), wrapping(found))[1])
    training.call(torch.randn(4, 8, requires_grad=True)).sum().backward()
    forward = facts[0]
    assert forward.small == small
    assert forward.large == (() if small else (0,))
    assert (forward.saved is None) == bool(small)


def test_gradients_that_are_kept_one_by_one_are_all_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing adds up what torch.autograd.grad() gives."""
    training = Training(nn.Linear(8, 8, bias=False), monkeypatch)
    training.trees.reuses = True
    inputs = [torch.full((4, 8), float(n)) for n in range(capture_place.LEARNING + 6)]
    kept = [torch.autograd.grad((training.call(x) * x).sum(), training.weight)[0] for x in inputs]
    for x, gradient in zip(inputs, kept, strict=True):
        assert torch.equal(gradient, x.mT @ x)
    assert training.log == CAPTURED * len(inputs)


def test_where_there_is_no_memory_for_copies_the_next_call_runs_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(tensors: Sequence[Tensor]) -> list[Tensor]:
        if tensors:
            raise torch.OutOfMemoryError
        return []

    training = Training(nn.Linear(8, 8, bias=False), monkeypatch)
    training.trees.reuses = True
    monkeypatch.setattr(capture_place, "copies_of", full)
    add_up(training, "first", 1)
    held = training.weight.grad
    expected = add_up(training, "first", 3)
    assert held is not None
    assert torch.equal(held, torch.zeros(8, 8))
    assert training.weight.grad is not None
    assert torch.equal(training.weight.grad, expected)


def test_outputs_that_share_memory_are_not_copied_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever writes into the one would no longer see it in the other."""
    facts = list[Any]()
    monkeypatch.setattr(cudagraph, "_obstacle", lambda gm: None)
    monkeypatch.setattr(cudagraph, "_device_index", lambda gm: 0)
    monkeypatch.setattr(cudagraph, "SMALL", 0)

    def compiler(gm: GraphModule, _: Sequence[Any]) -> Any:
        facts.append(cudagraph.CudaGraphLaunch([]).facts("inference", gm))
        return gm

    def program(x: Tensor) -> tuple[Tensor, ...]:
        apart, whole = x + 1, x.exp()
        return apart, whole.split(2)[0], whole.split(2)[1], x

    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(program, backend=aot_autograd(fw_compiler=compiler, inference_compiler=compiler))(
            torch.randn(4, 4)
        )
    assert [one.large for one in facts] == [(0,)]


class Stream:
    """A stream that says for which others it waits."""

    def __init__(self, number: int, log: list[tuple[int, int]]) -> None:
        self.cuda_stream, self.log = number, log

    def wait_stream(self, other: Stream) -> None:
        self.log.append((self.cuda_stream, other.cuda_stream))


def test_on_another_stream_a_step_waits_for_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[tuple[int, int]] = []
    streams, trees = [Stream(number, waits) for number in range(3)], Trees()
    for number in (0, 0, 1, 1, 2, 0):
        monkeypatch.setattr(capture_place, "_raw_stream", lambda device, now=number: now)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device, now=number: streams[now])
        capture_place.follow(trees, 0)  # type: ignore[arg-type]
    assert waits == [(1, 0), (2, 1), (0, 2)]
