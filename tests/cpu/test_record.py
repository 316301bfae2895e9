"""Recording: every program that torch.compile meets is written down, and the one who runs it notices nothing."""

from __future__ import annotations

import copy
import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import fuseplan
from agreement import assert_same
from fuseplan.capture.trace.format import Trace
from fuseplan.capture.trace.key import key_of
from fuseplan.capture.trace.load import load_trace
from fuseplan.cli import main
from fuseplan.errors import OptionError
from fuseplan.recording import hook, meeting
from fuseplan.recording.book import Recording
from fuseplan.recording.late import once_imported


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Dropout(0.3), nn.Linear(16, 4))


def step(call: Callable[..., Any], *args: Any) -> dict[str, Tensor]:
    """One step of training from the same random numbers; what it gives, and where the numbers stand after it."""
    torch.manual_seed(1)
    out = call(*args)
    out.sum().backward()
    return {"out": out.detach(), "random numbers": torch.get_rng_state()}


def times(recording: Recording) -> list[int]:
    return [sum(one.calls for one in trace.calls) for trace in recording.programs]


# what is met


BACKENDS: dict[str, Any] = {
    "eager": "eager",
    "aot_eager": "aot_eager",
    "inductor": "inductor",
    "a function": lambda gm, example_inputs: gm,
    "fuseplan": "fuseplan",
}


@pytest.mark.parametrize("backend", BACKENDS.values(), ids=BACKENDS)
def test_whatever_the_backend_the_key_is_the_one_that_fuseplan_looks_up(backend: Any) -> None:
    x = torch.randn(3, 8)
    with fuseplan.run(plan="eager") as watcher:
        step(torch.compile(mlp()), x)
    torch._dynamo.reset()
    with fuseplan.record() as recording:
        found = step(torch.compile(mlp(), backend=backend), x)
    torch._dynamo.reset()
    assert [trace.key for trace in recording.programs] == [program.key for program in watcher.programs]
    assert times(recording) == [1]
    assert_same(found, step(torch.compile(mlp(), backend=backend), x))


def test_what_was_compiled_before_and_is_called_first_inside_is_met() -> None:
    model = torch.compile(mlp(), backend="eager")
    with fuseplan.record() as recording:
        model(torch.randn(3, 8))
    assert [trace.name for trace in recording.programs] == ["Sequential"]


def test_forward_and_backward_are_counted_and_a_no_grad_call_is_another_program() -> None:
    model, x = torch.compile(mlp(), backend="aot_eager"), torch.randn(3, 8)
    with fuseplan.record() as recording:
        for _ in range(3):
            model(x).sum().backward()
        with torch.no_grad():
            model(x)
    assert times(recording) == [3, 1]
    backwards = [tally.backward.runs for entry in recording._entries.values() for tally in entry.tallies.values()]
    assert backwards == [3, 0]


def test_after_a_graph_break_there_are_two_programs() -> None:
    def broken(x: Tensor) -> Tensor:
        y = x * 2
        torch._dynamo.graph_break()
        return y.relu()

    with fuseplan.record(name="mine") as recording:
        torch.compile(broken, backend="eager")(torch.ones(3))
    first, second = (trace.name for trace in recording.programs)
    assert first == "mine.broken"
    assert second.startswith("mine.broken from line ")


def test_the_sizes_of_a_dynamic_program_are_counted_box_by_box(tmp_path: Path) -> None:
    model = torch.compile(lambda ids: ids * 2 + ids.shape[0], backend="eager", dynamic=True)
    with fuseplan.record(tmp_path) as recording:
        for size in (40, 40, 41, 7, 100, 40):
            model(torch.arange(size))
    traces = [Trace.from_json(file.read_text()) for file in sorted(tmp_path.iterdir())]
    written = {trace.to_json() for trace in recording.programs}
    assert {trace.to_json() for trace in traces} == written
    assert len(written) == 3
    assert len({trace.key for trace in traces}) == 1
    counts = [{one.sizes["s0"]: one.calls for one in trace.calls} for trace in recording.programs]
    assert counts == [{40: 3, 41: 1}, {7: 1}, {100: 1}]
    for trace, high in zip(recording.programs, (39, 6, 99), strict=True):
        assert trace.fields["inputs"][-1]["values"]["high"] == high
        load_trace(trace).step()


# nothing is changed


def test_gradients_and_random_numbers_are_the_same_while_recording() -> None:
    def run(scope: Any) -> dict[str, Any]:
        torch._dynamo.reset()
        model, x = mlp(), torch.randn(3, 8, generator=torch.Generator().manual_seed(3))
        with scope:
            compiled = torch.compile(model, backend="aot_eager")
            results = [step(compiled, x) for _ in range(2)]
        return {"steps": results, "gradients": [parameter.grad for parameter in model.parameters()]}

    assert_same(run(fuseplan.record()), run(torch.enable_grad()))


def test_what_cannot_be_recorded_runs_and_is_named() -> None:
    def choose(x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))

    with fuseplan.record() as recording:
        compiled = torch.compile(choose, backend="eager")
        assert_same(compiled(torch.ones(3)), torch.ones(3).sin())
    assert recording.programs == []
    assert recording.notes == ["choose: cond is a higher-order operator, which a trace cannot hold"]


def test_an_error_of_ours_is_a_note_and_not_the_scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any) -> Any:
        raise IndexError("a mistake\nof ours")

    monkeypatch.setattr(meeting, "write_trace", fail)
    with fuseplan.record() as recording:
        out = torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
    assert_same(out, torch.full((2,), 2.0))
    (note,) = recording.notes
    assert note.endswith("IndexError: a mistake of ours")


def test_what_was_compiled_inside_works_on_outside_and_is_counted_no_more() -> None:
    originals = [vars(getattr(torch, name)).get("__call__") for name in hook.WRAPPERS]
    compiled = torch.compile(lambda x: x + 1, backend="eager")
    with fuseplan.record() as recording:
        compiled(torch.ones(2))
    assert [vars(getattr(torch, name)).get("__call__") for name in hook.WRAPPERS] == originals
    assert_same(compiled(torch.ones(2)), torch.full((2,), 2.0))
    compiled(torch.ones(5))
    assert times(recording) == [1]


def test_a_torch_that_is_another_is_told_and_not_the_scripts_concern(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hook, "WRAPPERS", (*hook.WRAPPERS, "_TorchCompileOfTomorrow"))
    with fuseplan.record() as recording:
        torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
    assert times(recording) == [1]
    assert recording.notes == [f"torch {torch.__version__} has another torch.compile than this fuseplan knows"]


# what is written


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Fills the disk, and empties it again: a file can be made, and nothing be written to it."""
    write, full = Path.write_text, [False]

    def write_text(path: Path, text: str, **options: Any) -> int:
        if not full[0]:
            return write(path, text, **options)
        path.touch()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_text", write_text)
    return lambda is_full: full.__setitem__(0, is_full)


def test_a_program_is_in_its_file_as_soon_as_it_is_met(tmp_path: Path) -> None:
    seen: list[Trace] = []

    def backend(gm: Any, example_inputs: Any) -> Any:
        seen.extend(Trace.from_json(file.read_text()) for file in tmp_path.iterdir())
        return gm

    with fuseplan.record(tmp_path) as recording:
        torch.compile(mlp(), backend=backend)(torch.randn(3, 8))
    assert [trace.key for trace in seen] == [trace.key for trace in recording.programs]
    assert [trace.calls for trace in seen] == [()]


def test_what_was_counted_before_stays_where_it_is_more(tmp_path: Path) -> None:
    def record(calls: int) -> Trace:
        torch._dynamo.reset()
        model = torch.compile(mlp(), backend="eager")
        with fuseplan.record(tmp_path, name="run"):
            for _ in range(calls):
                model(torch.ones(3, 8))
        (file,) = tmp_path.iterdir()
        assert file.name.startswith("run.Sequential-")
        return Trace.from_json(file.read_text())

    assert [record(calls).times for calls in (3, 2, 4)] == [3, 3, 4]


def test_a_file_that_cannot_be_written_is_a_note(tmp_path: Path) -> None:
    with fuseplan.record(tmp_path / "traces") as recording:
        (tmp_path / "traces").touch()
        out = torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
    assert_same(out, torch.full((2,), 2.0))
    (note,) = recording.notes
    assert note == "<lambda> could not be written: File exists"
    assert recording.programs == []


def test_a_folder_is_made_with_the_first_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    with fuseplan.record("deep/traces") as recording:
        assert os.listdir() == ["elsewhere"]
        os.chdir("elsewhere")
        torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
    assert len(recording.programs) == len(os.listdir(tmp_path / "deep" / "traces")) == 1
    assert os.listdir() == []


def test_a_script_that_compiles_nothing_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "script.py").write_text("print('no torch here')\n")
    told = CliRunner().invoke(main, ["record", "-o", "deep/traces", "script.py"])
    assert told.exit_code == 0
    assert os.listdir() == ["script.py"]


def test_what_is_written_after_all_is_recorded_and_lost_calls_are_told(
    tmp_path: Path, full_disk: Callable[[bool], None]
) -> None:
    with fuseplan.record(tmp_path) as recording:
        full_disk(True)
        torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
        assert (recording.programs, list(tmp_path.iterdir())) == ([], [])
        full_disk(False)
    assert (times(recording), recording.notes) == ([1], [])
    torch._dynamo.reset()
    with fuseplan.record(tmp_path) as recording:
        torch.compile(lambda x: x + 2, backend="eager")(torch.ones(2))
        full_disk(True)
    assert len(recording.programs) == 1
    assert recording.notes == ["the last calls of <lambda> could not be written: No space left on device"]


@pytest.mark.parametrize("full", [True, False])
def test_the_verb_lists_what_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full_disk: Callable[[bool], None], full: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "script.py").write_text(
        "import torch\ntorch.compile(lambda x: x * 3, backend='eager')(torch.ones(2))\n"
    )
    full_disk(full)
    told = CliRunner().invoke(main, ["record", "script.py"])
    assert told.exit_code == 0
    first, second, *rest = told.stderr.splitlines()
    if full:
        assert first == "fuseplan recorded nothing in traces"
        assert second == "  not recorded: script.<lambda> could not be written: No space left on device"
        assert rest == []
    else:
        assert first == "fuseplan recorded 1 program in traces:"
        assert rest == ["Tune them with: fuseplan tune traces"]


def test_a_wrong_call_is_refused_before_anything_is_run(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for arguments, complaint in (
        ({"folder": tmp_path / "file"}, "nothing can be recorded in"),
        ({"folder": tmp_path / "file" / "traces"}, "nothing can be recorded in"),
        ({"folder": tmp_path / ("t" * 300)}, "nothing can be recorded in"),
        ({"retarget": "tpu"}, "retargeted to cpu or cuda, not to 'tpu'"),
        ({"compile": ["a-b"]}, "--compile takes the name of a class"),
    ):
        with pytest.raises(OptionError, match=complaint), fuseplan.record(**arguments):  # type: ignore[arg-type]
            raise AssertionError("this is not reached")


def test_retargeted_it_is_what_that_device_looks_up(tmp_path: Path) -> None:
    def there_and_back(x: Tensor) -> Tensor:
        return (x * 2).to("cpu") + 1

    with fuseplan.record(tmp_path, retarget="cuda") as recording:
        torch.compile(mlp(), backend="eager")(torch.randn(3, 8))
        torch.compile(there_and_back, backend="eager")(torch.ones(3))
    for trace in recording.programs:
        assert {item["device"] for item in trace.fields["inputs"]} == {"cuda:0"}
        assert trace.key == key_of(trace.fields)
    assert {Trace.from_json(file.read_text()).key for file in tmp_path.iterdir()} == {t.key for t in recording.programs}
    (note,) = recording.notes
    assert note.startswith("there_and_back may not be found again on cuda: call 1 (to) names the device 'cpu' itself")


# modules that nobody compiles


class Layer(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.linear, self.drop = nn.Linear(width, width), nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.drop(self.linear(x)).relu()


class Stack(nn.Module):
    def __init__(self, checkpointed: bool = False) -> None:
        super().__init__()
        self.checkpointed = checkpointed
        first = Layer()
        self.layers = nn.ModuleList([first, copy.deepcopy(first), Layer()])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.checkpointed else layer(x)
        return x


@pytest.mark.parametrize("name", ["Layer", "test_record.Layer", "Linear"])
def test_named_modules_are_recorded_and_run_as_eager_does(name: str) -> None:
    torch.manual_seed(0)
    model, x = Stack(), torch.randn(3, 8, requires_grad=True)
    with fuseplan.record(compile=[name]) as recording:
        found = step(model, x)
    gradients = [parameter.grad for parameter in model.parameters()]
    assert [trace.name for trace in recording.programs] == [name.split(".")[-1]]
    assert times(recording) == [3]
    model.zero_grad()
    assert_same(found, step(model, x))
    assert_same(gradients, [parameter.grad for parameter in model.parameters()])
    with fuseplan.run(compile=[name], plan="eager") as watcher:
        step(model, x)
    assert {program.key for program in watcher.programs} == {trace.key for trace in recording.programs}


@pytest.mark.parametrize("name", ["Stack", "Layer"])
def test_blocks_that_are_computed_again_draw_the_same_random_numbers(name: str) -> None:
    torch.manual_seed(0)
    model, x = Stack(checkpointed=True), torch.randn(3, 8, requires_grad=True)
    with fuseplan.record(compile=[name]) as recording:
        found = step(model, x)
    gradients = [parameter.grad for parameter in model.parameters()]
    assert [trace.name for trace in recording.programs] == [name]
    model.zero_grad()
    assert_same(found, step(model, x))
    assert_same(gradients, [parameter.grad for parameter in model.parameters()], bitwise=False)


def test_classes_that_are_made_later_are_found_and_names_that_are_none_are_told() -> None:
    with fuseplan.record(compile=["Late", "Layr"]) as recording:

        class Late(nn.Module):
            def forward(self, x: Tensor) -> Tensor:
                return x * 2

        Late()(torch.ones(3))
    assert [trace.name for trace in recording.programs] == ["Late"]
    assert recording.notes == ["--compile Layr: no module of such a class was called"]
    Late()(torch.ones(4))
    assert len(recording.programs) == 1


def test_a_named_module_inside_a_compiled_one_is_part_of_that() -> None:
    def keys(**named: Any) -> list[str]:
        torch._dynamo.reset()
        torch.manual_seed(0)
        with fuseplan.record(**named) as recording:
            torch.compile(nn.Sequential(Layer(), Layer()), backend="eager")(torch.ones(3, 8))
        return [trace.key for trace in recording.programs]

    assert keys() == keys(compile=["Layer"])
    assert len(keys()) == 1


# fuseplan in the place of the backend


def test_every_torch_compile_gets_fuseplan_with_its_mode() -> None:
    x = torch.randn(3, 8)
    with fuseplan.run() as watcher:
        torch.compile(mlp(), backend="eager", options={"trace.enabled": False}, mode="default")(x)
        torch.compile(dynamic=False)(lambda x: x + 1)(x)
        torch.compile(lambda x: x * 3, backend="fuseplan", options={"plan": "aten"})(x)
    assert [program.name for program in watcher.programs] == ["Sequential", "<lambda>", "<lambda>"]
    assert [program.plan.split(",")[0] for program in watcher.programs] == [
        "whole program under inductor", "whole program under inductor", "host aten",
    ]  # fmt: skip
    assert list(watcher.notes) == [
        "options of torch.compile that are those of another backend were left out: trace.enabled",
        "backend eager was replaced",
    ]
    assert not torch.compile.__module__.startswith("fuseplan")


def test_what_torch_compiles_for_itself_is_left_to_it() -> None:
    names = {"__name__": "torch.nn.attention.somewhere", "torch": torch}
    with fuseplan.run(plan="aten") as watcher:
        exec("out = torch.compile(lambda x: x + 1, backend='eager')(torch.ones(2))", names)
    assert watcher.programs == []
    assert_same(names["out"], torch.full((2,), 2.0))


def test_a_launch_that_cannot_be_had_is_told() -> None:
    with torch.no_grad(), fuseplan.run(plan="aten", launch="cudagraph") as watcher:
        torch.compile(lambda x: x * 2)(torch.ones(2))
    (program,) = watcher.programs
    assert program.why.startswith("asked for by option; the inference graph runs without a CUDA graph: ")
    assert program.why.endswith(" is on the cpu")


def test_an_unknown_option_is_refused_before_anything_is_run() -> None:
    with pytest.raises(OptionError, match="there is no plan called"), fuseplan.run(plan="fastest"):
        raise AssertionError("this is not reached")


# before torch is there


def test_what_is_to_be_done_after_an_import_is_done_once_and_leaves_no_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import importlib
    import sys

    (tmp_path / "slow_module.py").write_text("value = 3\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    finders, seen = sys.meta_path[:], []
    with once_imported("slow_module", lambda module: seen.append(module.value)):
        assert seen == []
        module = importlib.import_module("slow_module")
        importlib.reload(module)
    assert seen == [3]
    assert sys.meta_path == finders
    assert "exec_module" not in vars(module.__spec__.loader)
    with once_imported("never_imported", seen.append):
        pass
    assert sys.meta_path == finders
    del sys.modules["slow_module"]
