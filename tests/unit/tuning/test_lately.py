"""Small programs beside a large one that came a moment ago."""

from __future__ import annotations

from fuseplan.tuning.lately import LATELY_S, Lately


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_small_program_is_left_behind_a_large_one() -> None:
    lately = Lately()
    assert lately.leaves("a", 5) is None
    lately.met(600)
    why = lately.leaves("b", 20)
    assert why is not None
    assert "20 operators beside 600" in why
    assert lately.leaves("c", 61) is None


def test_many_small_programs_are_as_good_as_a_large_one() -> None:
    lately = Lately()
    lately.met(600)
    told = [lately.leaves(key, 20) for key in "abcde"]
    assert [why is None for why in told] == [False, False, False, True, True]


def test_one_that_comes_again_counts_once() -> None:
    lately = Lately()
    lately.met(600)
    assert all(lately.leaves("loss", 40) is not None for _ in range(5))
    assert lately.leaves("head", 20) is not None
    assert lately.leaves("tail", 20) is None


def test_the_largest_counts() -> None:
    lately = Lately()
    for operators in (30, 600, 40):
        lately.met(operators)
    assert lately.leaves("a", 50) is not None


def test_another_model_is_another_matter() -> None:
    clock = Clock()
    lately = Lately(clock)
    lately.met(600)
    clock.now += LATELY_S
    assert lately.leaves("a", 20) is not None  # as long as programs keep coming, it is one
    clock.now += LATELY_S
    assert lately.leaves("a", 20) is not None
    clock.now += LATELY_S + 1
    assert lately.leaves("a", 20) is None
