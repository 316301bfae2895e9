"""Splitting programs into shards: all of them, each once, the same on every machine, and none much longer than it has to be."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuseplan.capture.trace.format import Trace
from fuseplan.errors import OptionError
from fuseplan.tuning.effort import EFFORTS, QUICK, Effort
from fuseplan.tuning.queue.predicted_work import TuningWork, tuning_work
from fuseplan.tuning.queue.shards import ChosenShard, Shard, _Pile, _Piles, split
from fuseplan.tuning_db import Box

LAYERS = {f"layer {number}": 1000 * (number + 1) for number in range(12)}
"""What measuring a layer takes is the same for every program that has it."""


@st.composite
def programs(draw: st.DrawFn) -> list[TuningWork]:
    """Programs made of a few layers, of which some have all and some none in common."""
    found = []
    for number in range(draw(st.integers(0, 40))):
        layers = draw(st.sets(st.sampled_from(sorted(LAYERS)), max_size=6))
        own = draw(st.integers(1, 50_000))
        found.append(TuningWork(f"{own % 7} program {number}", own, {name: LAYERS[name] for name in layers}))
    return found


def work_of(works: Sequence[TuningWork]) -> int:
    """What one machine takes for these."""
    layers = {name: ms for work in works for name, ms in work.stretches.items()}
    return sum(work.own_ms for work in works) + sum(layers.values())


def keys(works: Sequence[TuningWork], count: int) -> list[list[str]]:
    return [[works[i].key for i in shard.programs] for shard in split(works, count).shards]


@given(programs(), st.integers(1, 20))
def test_each_program_is_in_one_shard(works: list[TuningWork], count: int) -> None:
    found = split(works, count).shards
    assert len(found) == count
    assert sorted(i for shard in found for i in shard.programs) == list(range(len(works)))
    assert [shard.ms for shard in found] == [work_of([works[i] for i in shard.programs]) for shard in found]


@given(programs(), st.integers(1, 20), st.randoms(use_true_random=False))
def test_the_order_in_which_programs_come_does_not_count(
    works: list[TuningWork], count: int, rng: random.Random
) -> None:
    mixed = rng.sample(works, len(works))
    assert list(map(sorted, keys(mixed, count))) == list(map(sorted, keys(works, count)))
    assert split(mixed, count).key == split(works, count).key


@given(programs(), st.integers(1, 20))
def test_the_longest_shard_is_not_much_longer_than_it_has_to_be(works: list[TuningWork], count: int) -> None:
    longest = max((work.alone_ms for work in works), default=0)
    least = max(longest, work_of(works) / count)
    as_a_list = sum(work.alone_ms for work in works) / count + longest
    found = split(works, count)
    assert least <= found.longest_ms <= max(4 / 3 * least + 1, as_a_list)


@given(
    st.lists(st.tuples(st.integers(0, 9), st.sets(st.sampled_from(sorted(LAYERS)), max_size=4)), max_size=40),
    st.integers(1, 9),
)
def test_each_piece_goes_where_it_makes_the_lowest_pile(pieces: list[tuple[int, set[str]]], count: int) -> None:
    """As asking each pile tells, however few are asked."""
    piles: list[tuple[int, set[str]]] = [(0, set())] * count
    found = _Piles(count)
    for number, (own, layers) in enumerate(pieces):
        higher = [ms + own + sum(LAYERS[name] for name in layers - known) for ms, known in piles]
        place = higher.index(min(higher))
        piece = _Pile()
        piece.add([TuningWork(str(number), own, {name: LAYERS[name] for name in sorted(layers)})])
        assert found.lowest(piece) == place
        found.add(place, piece)
        piles[place] = higher[place], piles[place][1] | layers
    assert [pile.ms for pile in found.piles] == [ms for ms, _ in piles]


def test_a_thousand_shards_of_thousands_of_programs() -> None:
    rng = random.Random(1)
    works = [
        TuningWork(f"{i:05}", 48_000, dict.fromkeys(map(str, rng.sample(range(90_000), 20)), 3000)) for i in range(6000)
    ]
    found = split(works, 2000)
    assert sum(len(shard.programs) for shard in found.shards) == 6000
    assert found.longest_ms <= 3 * 108_000


def test_equal_layers_stay_together_where_that_costs_no_time() -> None:
    layers = [{"a": 9000}, {"b": 9000}, {"c": 9000}, {"d": 9000}]
    works = [TuningWork(f"{i:02}", 1000, layers[i % 4]) for i in range(24)]
    assert keys(works, 4) == [[f"{i:02}" for i in range(first, 24, 4)] for first in range(4)]


def test_a_family_that_all_would_wait_for_is_cut() -> None:
    works = [TuningWork(f"{i:02}", 10_000, {"a": 3000}) for i in range(32)]
    found = split(works, 16)
    assert [len(shard.programs) for shard in found.shards] == [2] * 16
    assert {shard.ms for shard in found.shards} == {23_000}


def test_a_split_is_the_same_in_every_process() -> None:
    """Whatever Python makes of hashes there, and the system of letters."""
    code = (
        "import random; from fuseplan.tuning.queue.predicted_work import TuningWork; from fuseplan.tuning.queue.shards import split\n"
        "rng = random.Random(1)\n"
        "works = [TuningWork(f'ı{i} é', rng.randint(1, 99), dict.fromkeys(rng.sample('abcdefghijkl', 4), 50)) for i in range(200)]\n"
        "found = split(works, 16)\n"
        "print(found.key, *(','.join(map(str, shard.programs)) for shard in found.shards))\n"
    )
    told = set()
    for seed, letters in (("0", "C"), ("1", "C.UTF-8"), ("2", "tr_TR.UTF-8"), ("random", "")):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "LC_ALL": letters, "TZ": f"UTC{seed[:1]}"}
        ran = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, env=environment)
        told.add(ran.stdout)
    assert len(told) == 1


def test_a_split_says_when_it_is_another() -> None:
    works = [TuningWork(name, 1000, {}) for name in "abcd"]
    same = split(works, 2).key
    assert split(works[::-1], 2).key == same
    assert {split(works[:3], 2).key, split(works, 3).key, split([*works, TuningWork("e", 1, {})], 2).key}.isdisjoint(
        {same}
    )
    assert str(ChosenShard(Shard(2, 2), split(works[:3], 2))).endswith(": 1 of 3 programs")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("0/16", "not 0/16"),
        ("17/16", "shards of 16 are 1/16 to 16/16, not 17/16"),
        ("1/0", "not 0"),
        ("1/10001", "not 10,001"),
        ("x/y", "as in 3/16, not 'x/y'"),
        ("3", "not '3'"),
        ("", "not ''"),
        ("-1/4", "not '-1/4'"),
        ("1/2/3", "not '1/2/3'"),
        ("1.0/2", "not '1.0/2'"),
        ("١/٢", "not '١/٢'"),
        ("9" * 50 + "/1", "as in 3/16"),
    ],
)
def test_what_names_no_shard(text: str, why: str) -> None:
    with pytest.raises(OptionError, match="shard") as caught:
        Shard.named(text)
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("given", [(0, 2), (3, 2), (1.0, 2), (1, 2, 3), ("1", "2"), [1, 2], 3])
def test_what_is_no_pair_of_numbers(given: object) -> None:
    with pytest.raises(OptionError, match="shard"):
        Shard.named(given)  # type: ignore[arg-type]


# What a program is predicted to take


def trace(layers: int = 2, size: int = 16, grad: bool = False, device: str = "cpu", **fields: object) -> Trace:
    """A program of equal layers, each a product and what comes after it."""

    def tensor(kind: str, *shape: int) -> dict[str, object]:
        known = {"kind": kind, "dtype": "float32", "shape": [*shape], "stride": [shape[-1], 1], "device": device}
        return {**known, "grad": grad and kind == "parameter", "leaf": True, "values": {"spread": "normal"}}

    inputs = [tensor("input", 8, size), *(tensor("parameter", size, size) for _ in range(layers))]
    nodes, x = [], 0
    for layer in range(layers):
        first = len(inputs) + len(nodes)
        nodes += [
            {"op": "function", "target": "torch.nn.functional.linear", "args": [{"ref": x}, {"ref": 1 + layer}, None]},
            {"op": "function", "target": "torch.relu", "args": [{"ref": first}]},
            {"op": "method", "target": "to", "args": [{"ref": first + 1}, {"device": device}]},
        ]
        x = first + 2
    modes = {"autocast": {}, "grad": grad, "inference": False, "default": "float32", "deterministic": False}
    written = {
        "torch": "2.13.0",
        "modes": modes,
        "symbols": [],
        "inputs": inputs,
        "nodes": nodes,
        "output": [{"ref": x}],
    }
    return Trace("ab" * 32, "mlp", {**written, **fields})


def predicted(found: Trace, effort: Effort = QUICK) -> TuningWork:
    return tuning_work(found, Box(), effort)


def test_layers_that_are_equal_are_measured_once() -> None:
    one, two, many = (predicted(trace(layers)).stretches for layers in (1, 2, 12))
    # the first layer reads what the program is given, the others what is before them
    assert (len(one), len(two), len(many)) == (1, 2, 2)
    assert two == many
    assert set(one) < set(two)


@pytest.mark.parametrize(
    "other",
    [trace(size=32), trace(grad=True), trace(modes={**trace().fields["modes"], "autocast": {"cpu": "bfloat16"}})],
)
def test_layers_of_other_sizes_or_modes_are_others(other: Trace) -> None:
    assert predicted(trace()).stretches.keys().isdisjoint(predicted(other).stretches)


def test_what_does_not_make_another_program_does_not_count() -> None:
    """Ranks on other devices, other values, another torch that wrote it, and a name."""
    inputs = [{**item, "values": {"spread": "few"}} for item in trace().fields["inputs"]]
    for device in ("cuda:0", "cuda:3"):
        moved = trace(device=device, torch="2.11.0")
        assert predicted(Trace(moved.key, "rank 3", moved.fields)) == predicted(trace(device="cuda:1"))
    assert predicted(trace(inputs=inputs)) == predicted(trace())


def test_no_program_takes_more_than_its_effort_grants() -> None:
    for effort in EFFORTS:
        small, large = (predicted(trace(layers), effort).alone_ms for layers in (1, 5000))
        assert 0 < small <= large <= 1000 * effort.wall_s
        assert predicted(trace(grad=True), effort).alone_ms >= predicted(trace(), effort).alone_ms


def test_blocks_are_looked_into() -> None:
    inner = trace().fields
    ops = [{**node, "args": [{"ref": 0}]} for node in inner["nodes"]]
    block = {"op": "block", "inputs": 1, "nodes": ops, "output": [{"ref": len(ops)}]}
    found = predicted(trace(nodes=[block, block]))
    assert len(found.stretches) == len(predicted(trace(nodes=[block])).stretches) > 0
