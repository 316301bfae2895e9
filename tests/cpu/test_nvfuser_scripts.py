"""nvFuser scripts: of both spellings, each computes what it says; what is not understood is named with its place."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing import assert_close

from fuseplan.capture.nvfuser_script import builder, read_script, read_scripts
from fuseplan.capture.nvfuser_script.table import OPS
from fuseplan.capture.trace.format import Trace
from fuseplan.capture.trace.load import load_trace
from fuseplan.capture.trace.write import write_trace
from fuseplan.errors import FuseplanError, GraphError, OptionError
from fuseplan.tune import tune
from fuseplan.tuning.queue.sources import read_programs, read_traces
from fuseplan.tuning_db import Store, places
from script_references import ON_GPUS, REFERENCES, SCRIPTS, THEN_AND_NOW, graph_key, text_of

BOTH = ("today", "old")


def read(script: str) -> list[Trace]:
    """The programs of a script of the corpus; that sizes were chosen is no news here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return read_scripts(text_of(script), script)


def test_every_script_of_the_corpus_is_compared_with_something() -> None:
    here = {f"{path.parent.name}/{path.stem}" for path in SCRIPTS.glob("*/*.py")}
    assert here == {*REFERENCES, *(f"{spelling}/{name}" for spelling in BOTH for name in THEN_AND_NOW)}


@pytest.mark.parametrize("script", REFERENCES)
def test_a_script_computes_what_is_written_by_hand(script: str) -> None:
    traces = read(script)
    assert len(traces) == len(REFERENCES[script])
    for trace, reference in zip(traces, REFERENCES[script], strict=True):
        loaded = load_trace(trace, "cpu")
        given, expected_inputs = loaded.inputs(seed=3), loaded.inputs(seed=3)
        torch.manual_seed(5)
        found = loaded.step(args=given)
        torch.manual_seed(5)
        expected = reference(*expected_inputs)
        expected = expected if isinstance(expected, tuple) else (expected,)
        # also what is written to an input
        assert_close([*found, *given], [*expected, *expected_inputs], equal_nan=True)


# the same Graph


@pytest.mark.parametrize("name", THEN_AND_NOW)
def test_both_spellings_give_the_graph_of_the_same_program_in_pytorch(name: str) -> None:
    function, shapes = THEN_AND_NOW[name]
    (today,), (old,) = (read(f"{spelling}/{name}") for spelling in BOTH)
    assert (today.key, today.fields["nodes"]) == (old.key, old.fields["nodes"])
    loaded = load_trace(today, "meta")
    same = graph_key(function, *(torch.zeros(shape, device="meta") for shape in shapes))
    assert graph_key(loaded.module, *loaded.inputs()) == same


def test_the_key_is_the_one_that_cuda_looks_up() -> None:
    def program(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        first = torch.reshape(torch.reshape(x, [8192, 3072]) + y, [64, 128, 3072])
        return torch.reshape(first * z, [8192, 3072])

    found: list[str] = []

    def backend(gm: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        found.append(write_trace(gm, inputs).key)
        return gm.forward

    with FakeTensorMode(), torch.no_grad():
        shapes = ((64, 128, 3072), (8192, 3072), (64, 128, 3072))
        torch.compile(program, backend=backend)(*(torch.empty(shape, device="cuda") for shape in shapes))
    assert found == [read("today/three_views")[0].key]


@pytest.mark.parametrize(
    "script", ["today/attention", "today/repeated_and_padded", "old/squeezed", "today/running_mean"]
)
def test_a_loaded_program_is_captured_as_the_trace_says(script: str) -> None:
    (trace,) = read(script)
    found: list[Trace] = []

    def backend(gm: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        found.append(write_trace(gm, inputs))
        return gm.forward

    loaded = load_trace(trace, "cpu")
    with loaded.modes():
        torch.compile(loaded.module, backend=backend)(*loaded.inputs())
    assert [one.fields["nodes"] for one in found] == [loaded.trace.fields["nodes"]]


# inputs


SCALE = """
def nvfuser_fusion_id0(fd : FusionDefinition) -> None :
    T0 = fd.define_tensor({tensor})
    T1 = fd.ops.mul(T0, fd.define_scalar(2.0))
    fd.add_output(T1)
"""


@pytest.mark.parametrize(
    ("tensor", "shape", "stride"),
    [
        ("shape=[4, 6], contiguity=[True, True]", [4, 6], [6, 1]),
        ("shape=[4, 6], contiguity=[True, True], stride_order=[0, 1]", [4, 6], [1, 4]),
        ("shape=[2, 3, 4, 5], contiguity=True, stride_order=[3, 0, 2, 1]", [2, 3, 4, 5], [60, 1, 15, 3]),
        ("shape=[4, 6], contiguity=[False, True]", [4, 6], [12, 1]),
        ("shape=[4, 6], contiguity=[None, True]", [4, 6], [0, 1]),
        # contiguity is told from the slowest dimension on: it is the second one that is repeated
        ("shape=[4, 6], contiguity=[None, True], stride_order=[0, 1]", [4, 6], [1, 0]),
        ("shape=[1, 6], contiguity=[None, True]", [1, 6], [6, 1]),
        ("sizes=[4, 6], strides=[1, 4], dtype=DataType.Float", [4, 6], [1, 4]),
        ("[4, 6], [6, 1]", [4, 6], [6, 1]),
        ("2, [True, True]", [128, 1024], [1024, 1]),
        ("symbolic_sizes=[-1], contiguous=[True]", [1024], [1]),
        ("shape=[], contiguity=[], is_cpu=True", [], []),
    ],
)
def test_a_tensor_lies_in_memory_as_it_is_declared(tensor: str, shape: list[int], stride: list[int]) -> None:
    with pytest.warns(UserWarning, match="the script gives no inputs; chosen were"):
        (item,) = read_script(SCALE.format(tensor=tensor)).fields["inputs"]
    assert (item["shape"], item["stride"], item["device"]) == (shape, stride, "cpu" if "is_cpu" in tensor else "cuda:0")


def test_sizes_that_no_one_gives_follow_from_those_that_are_known() -> None:
    text = """
T0 = fd.define_tensor(symbolic_sizes=[-1, -1], contiguous=[True, True])
T1 = fd.define_tensor(symbolic_sizes=[-1, -1], contiguous=[True, True])
T2 = fd.define_tensor(symbolic_sizes=[-1, -1, -1], contiguous=[True, True, True])
T3 = fd.define_tensor(symbolic_sizes=[-1], contiguous=[True])
T4 = fd.ops.linear(T0, T1, T3)
T5 = fd.ops.add(fd.ops.reshape(T4, new_shape=[4, 8, 40]), T2)
fd.add_output(fd.ops.slice(T5, start_indices=[0, 0, 0], end_indices=[4, 8, 20]))
"""
    with pytest.warns(UserWarning, match="gives no inputs") as told:
        trace = read_script(text, "linear")
    assert [item["shape"] for item in trace.fields["inputs"]] == [[32, 1024], [40, 1024], [4, 8, 40], [40]]
    assert "linear gives no inputs; chosen were [32, 1024], [40, 1024], [4, 8, 40], [40]" in str(told[0].message)


def test_what_inputs_hold_is_kept_and_indices_stay_in_range() -> None:
    text = """
ids = torch.testing.make_tensor((50,), dtype=torch.int64, device='cuda:0')
with FusionDefinition() as fd:
    T0 = fd.define_tensor(shape=[-1], contiguity=[True], dtype=DataType.Int)
    T1 = fd.define_tensor(shape=[-1, -1], contiguity=[True, True])
    T2 = fd.define_tensor(shape=[-1], contiguity=[True], dtype=DataType.Int)
    T3 = fd.ops.index_select(T1, fd.ops.reshape(T0, new_shape=[50]), dim=0)
    fd.add_output(fd.ops.mul(T3, fd.ops.index_select(T1, T2, dim=0)))
fd.execute([ids, torch.rand(7, 3, device='cuda'), torch.arange(50, device='cuda') % 7])
"""
    with pytest.raises(GraphError, match=r"line 9, column 51: .*torch.arange\(50, device.*% 7.* is not understood"):
        read_script(text)
    made = load_trace(read_script(text.replace(" % 7", ".clone()")), "cpu").inputs()
    assert 0 <= made[0].min() < made[0].max() < 7
    assert 0 <= made[1].min() < made[1].max() <= 1
    assert 0 <= made[2].min() < made[2].max() < 7


def test_indices_that_a_where_made_floats_are_integers_again() -> None:
    text = """
inputs = [torch.randn(5, 8, device='cuda'), torch.randint(0, 8, (5, 1), device='cuda')]
with FusionDefinition() as fd:
    T0, T1 = fd.from_pytorch(inputs[0]), fd.from_pytorch(inputs[1])
    T2 = fd.ops.where(fd.ops.ne(T1, fd.define_scalar(3)), T1, fd.define_scalar(0.0, dtype=DataType.Float))
    fd.add_output(fd.ops.take_along_axis(T0, T2, dim=1))
"""
    loaded = load_trace(read_script(text), "cpu")
    x, index = loaded.inputs()
    assert_close(loaded.step(args=[x, index]), [x.gather(1, torch.where(index == 3, 0, index))])


def test_a_fusion_without_tensors_among_its_inputs_is_one() -> None:
    text = """
def fusion_func(fd: FusionDefinition):
    sizes = [None] * 2
    for place in range(len(sizes)):
        sizes[place] = fd.define_scalar(value=None, dtype=DataType.Int)
    fd.add_output(fd.ops.iota(fd.ops.add(sizes[0], sizes[1]), fd.define_scalar(1), fd.define_scalar(2), DataType.Int32))
with FusionDefinition() as fd:
    fusion_func(fd)
fd.execute([3, 2])
"""
    trace = read_script(text).on("cpu")
    assert_close(load_trace(trace).step(), [torch.tensor([1, 3, 5, 7, 9], dtype=torch.int32)])


def test_outputs_that_are_inputs_are_copies_where_a_copy_was_asked_for() -> None:
    text = """
inputs = [torch.randn(3, 4, device='cuda')]
with FusionDefinition() as fd:
    T0 = fd.from_pytorch(inputs[0])
    fd.add_output(fd.ops.set(T0))
    fd.add_output(fd.ops.permute(T0, [1, 0]), stride_order=[1, 0])
    fd.add_output(fd.ops.permute(T0, [1, 0]))
    fd.add_output(fd.ops.neg(T0), [0, 1])
"""
    loaded = load_trace(read_script(text), "cpu")
    (x,) = loaded.inputs()
    copy, rows, moved, columns = loaded.step(args=[x])
    assert_close([copy, rows, moved, columns], [x, x.t(), x.t(), -x], check_stride=False)
    assert copy.data_ptr() != x.data_ptr() == moved.data_ptr()
    assert [out.stride() for out in (rows, moved, columns)] == [(3, 1), (1, 4), (1, 3)]


# what is refused


def fusion(line: str) -> str:
    start = "with FusionDefinition() as fd:\n    t = fd.define_tensor(shape=[4, 6])\n"
    return f"{start}    {line}\n    fd.add_output(fd.ops.relu(t))\n"


REFUSED: dict[str, tuple[str, str]] = {
    "empty": ("", "no FusionDefinition in it"),
    "no python": ("def f(:\n", "line 1, column 7: no Python"),
    "zero bytes": ("\0", "no Python"),
    "another import": ("import torch\nimport os\n", "line 2, column 1: it imports 'os'"),
    "from another": ("from subprocess import run", "line 1, column 1: it imports 'subprocess'"),
    "too long": ("x = 1\n" * 200_000, "a script of 1,200,000 characters; at most 1,048,576 are read"),
    "parentheses": ("(" * 5000 + ")" * 5000, "no Python"),
    "signs": ("x = " + "-" * 50_000 + "1", "no Python"),
    "a deep expression": (fusion("t = fd.ops.neg(" * 80 + "t" + ")" * 80), "nested deeper than 60"),
    "unknown op": (fusion("t = fd.ops.frobnicate(t)"), "line 3, column 9: fd.ops.frobnicate: no op of nvFuser"),
    "only nvFuser's": (fusion("t = fd.ops.scaled_mm(t, t, t, t)"), "line 3, column 9: fd.ops.scaled_mm: ATen has no op"),
    "unknown argument": (fusion("t = fd.ops.sum(t, quickly=True)"), "line 3, column 9: fd.ops.sum: got an unexpected"),
    "unknown name": (fusion("t = fd.ops.add(t, u)"), "line 3, column 23: the name 'u' is not known"),
    "unknown statement": (fusion("while True: pass"), "line 3, column 5: `while` is not understood in a fusion"),
    "unknown expression": (fusion("t = (lambda x: x)(t)"), "line 3, column 10: lambda x: x is not understood"),
    "unknown dtype": (fusion("t = fd.ops.cast(t, DataType.Int4)"), "DataType has no Int4"),
    "an open file": (fusion("x = open('/etc/passwd')"), "line 3, column 9: the name 'open' is not known"),
    "torch's loader": (fusion("x = torch.load('x')"), "line 3, column 9: torch.load: torch.load makes nothing"),
    "a way around": (fusion("x = t.__class__.__init__"), "line 3, column 9: t.__class__.__init__: there is no '__init__'"),
    "shapes that differ": (fusion("t = fd.ops.add(t, fd.ops.permute(t, [1, 0]))"), "line 3, column 9: fd.ops.add: "),
    "an endless loop": (fusion("for i in range(10**9): t = fd.ops.neg(t)"), "a range that is too long"),
    "many steps": (fusion("for i in range(90000): x = i + 1"), "a fusion of more than 100,000 steps"),
    "nothing computed": ("with FusionDefinition() as fd:\n    fd.add_output(fd.define_tensor(shape=[4]))\n", "computes nothing"),
    "a large number": (fusion("x = 9 ** 9 ** 9"), "a power that is too large"),
    "a long list": (fusion("x = [0] * 10 ** 9"), "a list that is too long"),
    "inputs that change": ("inputs = [torch.ones(4, 7)]\ninputs[0] = torch.ones(4, 6)\n" + fusion("pass"), "line 1, column 1: 'inputs' is changed after it is made"),
    "inputs that grow": ("inputs = []\ninputs.append(torch.ones(4, 6))\n" + fusion("pass"), "line 1, column 1: 'inputs' is changed after it is made"),
    "a list that doubles": (fusion("x = [1]\n    for i in range(64): x = x + x"), "lists that hold too much"),
    "a list in itself": (fusion("x = [1]\n    for i in range(64): x.extend(x)"), "lists that hold too much"),
    "lists of lists": (fusion("x = [t]\n    for i in range(64): x = [x, x]\n    t = fd.ops.cat(x, 0)"), "lists that hold too much"),
    "names of names": ("\n".join(f"a{i} = [a{i + 1}, a{i + 1}]" for i in range(25)) + "\na25 = [1]\n" + fusion("x = a0"), "a fusion of more than 100,000 steps"),
    "no end of itself": ("inputs = [inputs]\n" + fusion("pass"), "'inputs' stands for itself"),
    "a function in itself": ("def f(x):\n    return f(x)\n" + fusion("t = f(t)"), "nested deeper"),
    "too few inputs": (fusion("u = fd.define_tensor(shape=[4])") + "inputs = [torch.ones(4, 6)]", "line 3, column 9: fd.define_tensor: input 2, and the script gives 1"),
    "another shape": (fusion("pass") + "inputs = [torch.ones(4, 7)]", "line 2, column 9: fd.define_tensor: torch.float32 [4, 6], for which the script gives torch.float32 [4, 7]"),
    "a huge input": (fusion("pass") + "inputs = [torch.ones(2**30, 2**30)]", "elements"),
    "two fusions": (fusion("pass") + fusion("pass"), "defines 2 fusions, not one"),
    "no outputs": ("with FusionDefinition() as fd:\n    t = fd.define_tensor(shape=[4, 6])\n", "without an output"),
    "a number as output": (fusion("fd.add_output(fd.define_scalar(2.0))"), "an output that is a number"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.filterwarnings("ignore:fuseplan:UserWarning")
def test_what_is_not_understood_is_named_with_its_place_in_one_line(case: str) -> None:
    text, message = REFUSED[case]
    with pytest.raises(GraphError) as refusal:
        read_script(text)
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert len(str(refusal.value)) < 400


def test_nothing_of_a_script_is_executed(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    text = f"""
import torch
torch.save(torch.ones(1), {str(mark)!r})
class Loud:
    print("loud", file=open({str(mark)!r}, "w"))
{fusion("pass")}
inputs = [torch.ones(4, 6, device="cuda")]
torch.save(fd.execute(inputs), {str(mark)!r})
"""
    assert read_script(text).fields["inputs"][0]["shape"] == [4, 6]
    assert not mark.exists()


def test_files_that_are_no_scripts_are_named(tmp_path: Path) -> None:
    cases: dict[str, bytes] = {"empty.py": b"", "photo.py": b"\xff\xd8\xff\xe0\x00\x10JFIF", "zeros.py": b"\0" * 9}
    for name, content in cases.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(GraphError, match=f"{name}: (no |line )|{name} is no trace: it is no text"):
            read_traces(tmp_path / name)
    with io.FileIO(tmp_path / "large.py", "w") as file:
        file.truncate(200 * 2**20)
    with pytest.raises(GraphError, match=r"large.py is no trace: it is larger than 64 MiB"):
        read_traces(tmp_path / "large.py")
    with pytest.raises(OptionError, match=r"nowhere\.py cannot be read"):
        read_traces(tmp_path / "nowhere.py")


def test_a_fusion_without_end_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builder, "MAX_CALLS", 50)
    with pytest.raises(GraphError, match=r"line 3, column 31: fd\.ops\.neg: a fusion of more than 50 ops"):
        read_script(fusion("for i in range(1000): t = fd.ops.neg(t)"))


# ops that no script of the corpus has

ALONE = """
inputs = [torch.randn(4, 6, device="cuda"), torch.randn(4, 6, device="cuda"), torch.randint(0, 9, (4, 6), device="cuda")]
def fusion_func(fd: FusionDefinition):
    x, y, i = fd.from_pytorch(inputs[0]), fd.from_pytorch(inputs[1]), fd.from_pytorch(inputs[2])
    {outputs}
with FusionDefinition() as fd:
    fusion_func(fd)
fd.execute(inputs)
"""
OVER = "fd.ops.div(x, fd.ops.trunc(y))"
ELSEWHERE: dict[str, tuple[str, Callable[[Tensor, Tensor, Tensor], Tensor]]] = {
    "acosh": ("fd.ops.acosh(fd.ops.exp(x))", lambda x, y, i: x.exp().acosh()),
    "at": ("fd.ops.mul(x, fd.ops.at(fd.ops.shape(x), index=1))", lambda x, y, i: x * 6),
    "bernoulli": ("fd.ops.bernoulli(fd.ops.sigmoid(x))", lambda x, y, i: x.sigmoid().bernoulli()),
    "bitcast": ("fd.ops.bitcast(x, DataType.Int32)", lambda x, y, i: x.view(torch.int32)),
    "complex": ("fd.ops.abs(fd.ops.complex(x, y))", lambda x, y, i: x.hypot(y)),
    "cummax": ("fd.ops.cummax(x, 1)", lambda x, y, i: x.cummax(1).values),
    "cummin": ("fd.ops.cummin(x, dim=0)", lambda x, y, i: x.cummin(0).values),
    "cumprod": ("fd.ops.cumprod(x, 0)", lambda x, y, i: x.cumprod(0)),
    "erfcinv": ("fd.ops.erfcinv(fd.ops.sigmoid(x))", lambda x, y, i: (1 - x.sigmoid()).erfinv()),
    "index_put_accumulate": (
        "fd.ops.index_put_accumulate(x, fd.ops.slice(i, [0, 0], [4, 1]), y)",
        lambda x, y, i: x.index_put((i[:, 0],), y, accumulate=True),
    ),
    "isinf": (f"fd.ops.isinf({OVER})", lambda x, y, i: (x / y.trunc()).isinf()),
    "isnan": (f"fd.ops.isnan({OVER})", lambda x, y, i: (x / y.trunc()).isnan()),
    "isneginf": (f"fd.ops.isneginf({OVER})", lambda x, y, i: (x / y.trunc()).isneginf()),
    "isposinf": (f"fd.ops.isposinf({OVER})", lambda x, y, i: (x / y.trunc()).isposinf()),
    "isreal": ("fd.ops.isreal(x)", lambda x, y, i: torch.ones(4, 6, dtype=torch.bool)),
    "maximum": ("fd.ops.maximum(x, fd.define_scalar(0.25))", lambda x, y, i: x.clamp_min(0.25)),
    "nextafter": ("fd.ops.nextafter(x, y)", lambda x, y, i: x.nextafter(y)),
    "ones": ("fd.ops.add(x, fd.ops.ones(shape=[4, 6], dtype=DataType.Float))", lambda x, y, i: x + 1),
    "randn_like": ("fd.ops.randn_like(x)", lambda x, y, i: torch.randn_like(x)),
    "segment_set": ("fd.ops.mul(fd.ops.segment_set(x), y)", lambda x, y, i: x * y),
    "signbit": ("fd.ops.signbit(x)", lambda x, y, i: x.signbit()),
    "transpose": ("fd.ops.transpose(x, 0, 1)", lambda x, y, i: x.mT),
    "view_copy": ("fd.ops.view_copy(x, original_shape=[4, 6], new_shape=[3, 8])", lambda x, y, i: x.view(3, 8)),
    "zeros": ("fd.ops.sub(fd.ops.zeros(shape=[4, 6], dtype=DataType.Float), x)", lambda x, y, i: -x),
    "signs": ("-x + 2 * y ** 2 - (x > y) * i / 3", lambda x, y, i: -x + 2 * y.square() - (x > y) * i / 3),
}


def test_each_op_computes_what_it_says() -> None:
    outputs = "\n    ".join(f"fd.add_output({call})" for call, _ in ELSEWHERE.values())
    loaded = load_trace(read_script(ALONE.format(outputs=outputs)), "cpu")
    args = loaded.inputs(seed=2)
    torch.manual_seed(4)
    found = loaded.step(args=args)
    torch.manual_seed(4)
    for (op, (_, reference)), got in zip(ELSEWHERE.items(), found, strict=True):
        assert_close(got, reference(*args), equal_nan=True, check_stride=False, msg=lambda text, op=op: f"{op}: {text}")


@pytest.mark.filterwarnings("ignore:fuseplan:UserWarning")
def test_ops_of_gpus_alone_are_those_of_aten() -> None:
    backward = read_script(ON_GPUS["sdpfa_bwd"])
    assert [node["target"] for node in backward.fields["nodes"] if "ops." in node["target"]] == [
        "ops.aten._scaled_dot_product_flash_attention.default",
        "ops.aten._scaled_dot_product_flash_attention_backward.default",
    ]
    shapes = [tuple(out.shape) for out in load_trace(backward, "meta").step()]
    assert shapes == [(2, 4, 64, 32), (2, 4, 48, 32), (2, 4, 48, 32)]
    (grouped,) = load_trace(read_script(ON_GPUS["grouped_mm"]), "meta").step()
    assert grouped.shape == (64, 16)


def test_every_op_is_seen_to_work() -> None:
    """An op of the table that nothing here calls might as well be wrong."""
    texts = "\n".join(path.read_text(encoding="utf-8") for path in SCRIPTS.glob("*/*.py"))
    called = {name for name in OPS if re.search(rf"(ops|Ops|fd)\.{name}\(", texts)}
    assert sorted(set(OPS) - called - set(ELSEWHERE) - set(ON_GPUS)) == []


# the whole way


def test_a_script_is_asked_for_like_a_trace(tmp_path: Path) -> None:
    path = tmp_path / "repro.py"
    path.write_text(text_of("old/two_fusions"), encoding="utf-8")
    assert [trace.name for trace in read_programs(path, Store(places({}, tmp_path / "plans.sqlite3"))).traces] == [
        "repro-0",
        "repro-1",
    ]


@pytest.mark.exhaustive
def test_a_script_is_tuned_like_any_trace(tmp_path: Path) -> None:
    path = tmp_path / "repro.py"
    path.write_text(text_of("today/silu_mul"), encoding="utf-8")
    (tuned,) = tune(path, effort="none", device="cpu", db=tmp_path / "plans.sqlite3")
    assert (tuned.name, tuned.status) == ("repro", "unverified")


def test_errors_are_of_one_tree() -> None:
    with pytest.raises(FuseplanError):
        read_script("import socket")
