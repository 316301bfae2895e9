"""Expressions over symbols: what is one, what is not, and renaming."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuseplan import GraphError
from fuseplan.graph.expr import rename, symbols_in, tokens

GOOD = {
    "s0": ("s0",),
    "2*s0 + 1": ("s0",),
    "s1*s0*s1": ("s1", "s0"),
    "((s0 + 3)//4)": ("s0",),
    "s0**2 - (-s1)": ("s0", "s1"),
    "Max(1, s0, Min(s1, u2))": ("s0", "s1", "u2"),
    "ModularIndexing(s0, 4, 8) % 3": ("s0",),
    "0.5*ToFloat(s0) + 1.0e-5": ("s0",),
    "Eq(s0, 2) & (s1 > 3) | ~(s1 <= s0)": ("s0", "s1"),
    "Piecewise((1, s0 > 2), (0, True))": ("s0",),
    "CeilToInt(s0/2)": ("s0",),
    "-s0": ("s0",),
    " Max (s0, 1) ": ("s0",),
    "1e5*e5": ("e5",),
    "12": (),
    "False": (),
    "(" * 3000 + "s0" + ")" * 3000: ("s0",),
}

BAD = [
    "", " ", "s0 s1", "s0 +", "* s0", "s0 ** ", "(s0", "s0)", "()", "Max()", "Max(s0,)", "Max(,s0)", "s0, s1", "(s0, s1)",
    "s0(1)", "__import__(s0)", "eval(s0)", "s0.real", "s0[1]", "s0 if s1 else s2", "lambda: s0", "'s0'", "s0 = 1", "1s0",
    "s0\n", "s0;s1", "s\u0660", "\u0131", "True(s0)", "s0 !s1", "2(s0)", "(s0)(s1)", "(" * 8000, "s0 not s1",
    "s0//*s1",
]  # fmt: skip


@pytest.mark.parametrize("text", GOOD)
def test_symbols(text: str) -> None:
    assert symbols_in(text) == GOOD[text]


@pytest.mark.parametrize("text", BAD)
def test_no_expression(text: str) -> None:
    with pytest.raises(GraphError):
        symbols_in(text)


def test_rename_leaves_functions_and_numbers() -> None:
    assert rename("Max(s0, 1e5) + e5 // s10", {"s0": "a", "e5": "s0", "s10": "b"}.__getitem__) == "Max(a,1e5)+s0//b"


@given(st.text("s01(),+-*/% <=Max.e~", max_size=12))
def test_any_text_is_an_expression_or_an_error(text: str) -> None:
    try:
        found = tokens(text)
    except GraphError:
        return
    assert "".join(word for _, word in found) == text.replace(" ", "")
    assert tokens(rename(text, lambda name: name)) == found


@given(st.recursive(
    st.sampled_from(["s0", "s1", "7"]),
    lambda inner: st.builds("({}{}{})".format, inner, st.sampled_from(["+", "-", "*", "//", "%", "**"]), inner)
    | st.builds("Max({},{})".format, inner, inner) | st.builds("-{}".format, inner),
))  # fmt: skip
def test_renaming_there_and_back(text: str) -> None:
    there = {"s0": "s1", "s1": "x"}
    back = {new: old for old, new in there.items()}
    assert rename(rename(text, there.__getitem__), back.__getitem__) == text
