"""Moves as data: each is read back from its sentence and from JSON, and what older databases say of them is kept."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checks.project import ROOT
from fuseplan.errors import PlanError
from fuseplan.segment.moves import MOVES, Move
from fuseplan.segment.moves.move import MOST_TEXT, NOTE, from_json, to_json

words = st.from_regex(r"[A-Za-z_][\w.+-]{0,8}", fullmatch=True)
positions = st.integers(0, 20) | st.integers(0, 99_999)


@st.composite
def moves(draw: st.DrawFn) -> Move:
    """A move of any kind, with the parts that its sentence speaks of."""
    kind = draw(st.sampled_from(MOVES))
    region = draw(positions if "{ops}" not in kind.sentence else st.none() | positions)
    if "{region}" not in kind.sentence and "{place}" not in kind.sentence:
        region = None
    some = "{ops}" in kind.sentence or ("{place}" in kind.sentence and draw(st.booleans()))
    ops = tuple(sorted(draw(st.sets(positions, min_size=1, max_size=6)))) if some else ()
    if "{place}" in kind.sentence and ops:
        region = None
    runs = "{runner}" in kind.sentence
    change = draw(st.none() | st.floats(-1e9, 1e9).map(lambda value: round(value, 1)))
    return Move(
        kind.name, ops, region, draw(words) if runs else "", draw(words) if runs else "default",
        draw(words) if ops else "", draw(st.sampled_from(["", "inference", "forward", "backward"])),
        draw(st.integers(1, 99)), change,
    )  # fmt: skip


@given(moves())
def test_a_move_is_read_back_from_its_line(move: Move) -> None:
    assert Move.parse(move.line) == move
    assert Move.parse(move.text) == replace(move, role="", times=1, change_us=None)


@given(st.lists(moves() | st.builds(Move.noted, st.text())))
def test_moves_are_read_back_from_json(given: list[Move]) -> None:
    assert from_json(to_json(given)) == tuple(given)


@given(moves().map(lambda move: move.line) | st.text())
def test_no_line_of_an_older_database_is_lost(line: str) -> None:
    assert Move.noted(line).line == line


@pytest.mark.parametrize(
    ("line", "move"),
    [
        ("inference: 4 × -4.2 µs: peel the views at the head off the region at op 1, and the like",
         Move("peel-head", region=1, role="inference", times=4, change_us=-4.2)),
        ("backward: evict op 7 (aten.view)", Move("evict", (7,), target="aten.view", role="backward")),
        ("run op 0 (aten.relu) under inductor", Move("run", (0,), None, "inductor", target="aten.relu")),
        ("forward: +0.8 µs: merge op 7 (aten.t) and 2 more up into the region at op 3",
         Move(NOTE, role="forward", change_us=0.8, words="merge op 7 (aten.t) and 2 more up into the region at op 3")),
        ("inference: 4 × -4.2 µs: peel-head op 1 from 1..5, and the like",
         Move(NOTE, role="inference", times=4, change_us=-4.2, words="peel-head op 1 from 1..5")),
        ("4 × nothing", Move(NOTE, words="4 × nothing")),
    ],
)  # fmt: skip
def test_what_an_older_database_says(line: str, move: Move) -> None:
    assert Move.noted(line) == move


@pytest.mark.parametrize("line", ["", "melt op 3", "evict op 3 and op 4", "evict ops 3 and 3-9999999", "evict op 3\n"])
def test_a_line_that_no_move_has(line: str) -> None:
    with pytest.raises(PlanError, match="no move reads"):
        Move.parse(line)


@pytest.mark.parametrize(
    "text",
    ["", "{}", "7", '["evict"]', '[{"ops":[1]}]', '[{"name":"evict","ops":[-1]}]', '[{"name":"evict","ops":"1"}]',
     '[{"name":"evict","where":1}]', '[{"name":7}]', '[{"name":"evict","change_us":1}]', "[" * 100_000],
)  # fmt: skip
def test_what_are_no_moves(text: str) -> None:
    with pytest.raises(PlanError):
        from_json(text)


def test_of_too_many_moves_the_first_are_kept() -> None:
    text = to_json([Move("evict", (number,), role="inference") for number in range(40_000)])
    kept = from_json(text)
    assert len(text) <= MOST_TEXT
    assert kept[7] == Move("evict", (7,), role="inference")
    assert kept[-1].text == f"and {40_000 - len(kept) + 1} more"


def test_a_move_of_a_kind_that_is_not_known_here() -> None:
    assert (
        Move("melt", (3,), 5, "nvfuser", target="aten.t").text
        == "melt op 3 (aten.t) in the region at op 5 under nvfuser"
    )


def test_the_docs_show_moves_as_they_print() -> None:
    page = (ROOT / "docs" / "reading-a-plan.md").read_text(encoding="utf-8")
    shown = page.partition("  moves, from fusing all that can be fused:\n")[2].partition("```")[0].splitlines()
    assert len(shown) == 4
    assert [f"    {Move.parse(line.strip()).line}" for line in shown] == shown
    table = page.partition("| move | what it does |\n")[2].partition("\n\n")[0]
    assert set(re.findall(r"`([\w-]+)`", table)) == {kind.name for kind in MOVES}
