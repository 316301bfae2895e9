"""The fixed sample of OpInfo cases that CI runs; `scripts/opinfo` runs them all. And: the tester sees what is wrong."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
import torch

from opinfo import cases, compare, pool, summary
from opinfo.cases import Group
from opinfo.outcome import Outcome
from opinfo.verdict import Row
from opinfo.worker import Settings

ALL = len(cases.DTYPES)


@pytest.mark.slow
def test_a_case_of_each_operator_that_passes_with_aot_eager_passes_with_fuseplan() -> None:
    _check(_groups(0), Settings())


@pytest.mark.slow
def test_a_case_of_each_operator_runs_the_same_from_its_written_graph() -> None:
    """In another dtype than above, where there is one."""
    _check(_groups(1), Settings(backend="written"))


@pytest.mark.exhaustive
@pytest.mark.parametrize("backend", ["fuseplan", "written"])
@pytest.mark.parametrize("place", range(ALL))
def test_a_case_of_each_dtype_of_each_operator(backend: str, place: int) -> None:
    groups = [group for group in _groups(place) if place == 0 or group not in _groups(place - 1)]
    _check(tuple(groups), Settings(backend=backend))


@pytest.mark.slow
@pytest.mark.parametrize("first", [7, pytest.param(25, marks=pytest.mark.exhaustive)])
def test_sampled_cases_pass_with_every_second_op_carved_out(first: int) -> None:
    """Inductor compiles each for a second: these are some; `scripts/opinfo --backend carved` runs as many as are wanted. What Inductor
    gets wrong by itself is not the carving's.
    """
    groups = tuple(cases.sample_groups(cases.groups("cpu", None, ["float32"]), 1)[first::36])
    rows: dict[str, list[Row]] = {"carved": [], "host": []}
    pool.run(pool.Job(groups, Settings(backend="carved"), pick=1), rows["carved"].append)
    assert len([row for row in rows["carved"] if row.status == "passed"]) >= 0.8 * len(groups)
    bad = {pool.case_of(row).key: row for row in summary.bad(rows["carved"])}
    if bad:
        pool.run(pool.Job(groups, Settings(plan="inductor"), pick=1), rows["host"].append)
    known = {pool.case_of(row).key for row in summary.bad(rows["host"])}
    assert [(key, row.reason, row.detail) for key, row in bad.items() if key not in known] == []


def _groups(place: int) -> tuple[Group, ...]:
    """A dtype of each operator: the one at this place in a shuffle that is the same on every machine, or the last."""
    found = cases.sample_groups(cases.groups("cpu", None, list(cases.DTYPES)), ALL)
    by_op = itertools.groupby(found, key=lambda group: group.op)
    return tuple(list(itertools.islice(members, place + 1))[-1] for _, members in by_op)


def _check(groups: tuple[Group, ...], settings: Settings) -> None:
    """One case of each group: about 700 of them where each operator has one."""
    rows: list[Row] = []
    pool.run(pool.Job(groups, settings, pick=1), rows.append)

    assert [(pool.case_of(row).key, row.reason, row.detail) for row in summary.bad(rows)] == []
    passed = [row for row in rows if row.status == "passed"]
    assert len(passed) >= 0.8 * len(groups)  # "not applicable" must not swallow the sample


def _eager() -> Outcome:
    given = torch.tensor([1.0, 2.0, 3.0, 4.0]).reshape(2, 2)
    return Outcome([given.exp()], [given], [given.exp()], ((-1, -1, -1),))


def _kind(got: Outcome) -> str | None:
    eager = _eager()
    wide = Outcome([eager.inputs[0].double().exp()], [eager.inputs[0].double()], [eager.inputs[0].double().exp()])
    found = compare.difference(got, eager, compare.Rules(lambda: wide))
    return None if found is None else found.kind


def test_a_last_bit_is_forgiven_and_no_more() -> None:
    eager = _eager()
    nearly = torch.nextafter(eager.outputs[0], torch.tensor(0.0))
    assert _kind(eager) is None
    assert _kind(dataclasses.replace(eager, outputs=[nearly])) is None
    assert _kind(dataclasses.replace(eager, outputs=[eager.outputs[0] * (1 + 1e-5)])) == "output values"
    assert not compare.same_bits(dataclasses.replace(eager, outputs=[nearly]), eager)


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"outputs": [_eager().outputs[0].double()]}, "output dtype"),
        ({"outputs": [_eager().outputs[0].t().contiguous().t()]}, "output strides"),
        ({"outputs": [_eager().outputs[0][:1]]}, "output shape"),
        ({"outputs": []}, "outputs"),
        ({"inputs": [_eager().inputs[0] + 1]}, "input values"),
        ({"grads": [None]}, "gradient value"),
        ({"grads": [_eager().grads[0] * float("nan")]}, "gradient values"),  # type: ignore[operator]
        ({"aliases": ((0, 0, -1),)}, "aliasing"),
        ({"error": "RuntimeError: no"}, "raises"),
    ],
)
def test_what_a_caller_could_notice_is_a_difference(change: dict[str, object], kind: str) -> None:
    assert _kind(dataclasses.replace(_eager(), **change)) == kind  # type: ignore[arg-type]


def test_random_numbers_must_be_equal_to_the_bit() -> None:
    eager = _eager()
    nearly = torch.nextafter(eager.outputs[0], torch.tensor(0.0))
    found = compare.difference(dataclasses.replace(eager, outputs=[nearly]), eager, compare.Rules(lambda: None))
    assert found is not None
    assert found.kind == "output values"
