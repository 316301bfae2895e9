"""The lazy public names: what is listed and what is refused."""

from __future__ import annotations

import pytest

import fuseplan
from fuseplan import errors


def test_every_error_is_public_and_one_of_ours() -> None:
    defined = {name for name, value in vars(errors).items() if isinstance(value, type)}
    assert defined <= set(fuseplan.__all__)
    for name in defined:
        assert getattr(fuseplan, name) is getattr(errors, name)
        assert issubclass(getattr(errors, name), fuseplan.FuseplanError)
        assert name in (errors.__doc__ or ""), "the tree in the docstring shows each error"


def test_dir_shows_names_that_are_not_loaded_yet() -> None:
    assert set(fuseplan.__all__) <= set(dir(fuseplan))


def test_an_unknown_name() -> None:
    with pytest.raises(AttributeError, match="module 'fuseplan' has no attribute 'compose'"):
        _ = fuseplan.compose  # type: ignore[attr-defined]
