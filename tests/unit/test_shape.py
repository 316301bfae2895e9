"""The checks of shape find each fault that is planted for them, and no more."""

from __future__ import annotations

from pathlib import Path

from checks.shape import AROUND, ONE_CLASS_A_NAME, circles, long, named_twice, patches, texts


def written(tmp_path: Path, **sources: str) -> dict[str, Path]:
    """Modules of fuseplan by name; `a__b` stands for fuseplan.a.b."""
    files = {"fuseplan": tmp_path / "__init__.py"}
    files["fuseplan"].write_text("")
    for name, source in sources.items():
        files[f"fuseplan.{name.replace('__', '.')}"] = path = tmp_path / f"{name}.py"
        path.write_text(source)
    return files


def test_two_files_of_one_folder_that_import_each_other(tmp_path: Path) -> None:
    sources = written(tmp_path, graph__a="from fuseplan.graph.b import B", graph__b="import fuseplan.graph.a")
    assert circles(sources) == ["these files import each other: fuseplan.graph.a, fuseplan.graph.b"]


def test_a_circle_for_type_checkers_or_inside_a_function_is_one_too(tmp_path: Path) -> None:
    hidden = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from fuseplan.x.b import B"
    inside = "def f():\n    from fuseplan.x.c import C"
    sources = written(tmp_path, x__a=hidden, x__b=inside, x__c="from fuseplan.x.a import A", x__d="import fuseplan.x.a")
    assert circles(sources) == ["these files import each other: fuseplan.x.a, fuseplan.x.b, fuseplan.x.c"]


def test_a_chain_is_no_circle(tmp_path: Path) -> None:
    sources = written(
        tmp_path, a="from fuseplan.b import B\nfrom fuseplan import __version__", b="import fuseplan.c", c=""
    )
    assert circles(sources) == []


def test_an_import_of_our_own_package_by_text(tmp_path: Path) -> None:
    plain = 'from importlib import import_module\nimport_module("fuseplan.b")'
    by_table = 'import importlib\nHOMES = {"f": "fuseplan.b"}\nimportlib.import_module(HOMES["f"])'
    built = 'name = "b"\n__import__(f"fuseplan.{name}")'
    sources = written(tmp_path, a=plain, b="", c=by_table, d=built)
    places = [line.split(": ")[0].rsplit("/", 1)[1] for line in texts(sources)]
    assert places == ["a.py:2", "c.py:2", "d.py:2"]


def test_a_text_that_others_import_our_own_package_by(tmp_path: Path) -> None:
    place = 'A = "fuseplan.c:C"'
    sources = written(tmp_path, a='A = f"{__package__}.c:C"', b='B = __name__ + ".c"', c="class C: ...", d=place)
    places = [line.split(": ")[0].rsplit("/", 1)[1] for line in texts(sources)]
    assert places == ["a.py:1", "b.py:1", "d.py:1"]


def test_a_text_that_our_own_package_is_patched_by(tmp_path: Path) -> None:
    method = 'from unittest import mock\nwith mock.patch("fuseplan.b.B", return_value=1): ...'
    bare = 'from unittest.mock import patch\n@patch("fuseplan.b")\ndef f(): ...'
    fine = 'from unittest import mock\nfrom fuseplan import b\nmock.patch.object(b, "B")\nmock.patch("torch.compile")\npatch({"a": 1})'
    sources = written(tmp_path, a=method, b="class B: ...", c=bare, d=fine)
    assert [line.split(": ")[0].rsplit("/", 1)[1] for line in texts(sources)] == ["a.py:2", "c.py:2"]
    outside = tmp_path / "outside.py"
    outside.write_text(method)
    (found,) = patches([outside, sources["fuseplan.d"]], sources)
    assert found.startswith(f"{outside}:2: our own package is patched by a text")
    assert "benchmarks" in AROUND


def test_other_texts_and_other_imports_are_nobodys_business(tmp_path: Path) -> None:
    others = 'from importlib import import_module\nimport_module("torch.compiler.config")\nimport_module(input())'
    started = 'COMMAND = ["python", "-m", "fuseplan.b"]'
    shown = 'log = getLogger(__name__)\nWHERE = "fuseplan.b says: no"\nif __name__ == "__main__":\n    print(f"{type(log).__name__}")'
    assert texts(written(tmp_path, a=others, b="", c=started, d=shown)) == []


def test_a_function_and_a_file_that_are_too_long(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text("def f():\n" + "    pass\n" * 59)
    assert long([path]) == []
    path.write_text("def f():\n" + "    pass\n" * 60)
    assert long([path]) == [f"{path}:1: f has 61 lines, 60 fit a screen"]
    path.write_text("x = 1\n" * 401)
    assert long([path]) == [f"{path}: 401 lines, 400 are enough for one subject"]


def test_a_public_class_name_that_two_files_define(tmp_path: Path) -> None:
    sources = written(
        tmp_path, a="class Plan: ...\nclass _Own: ...", b="class Plan: ...\nclass _Own: ...", c="class Cut: ..."
    )
    (found,) = named_twice(sources.values())
    assert found == f"class Plan is defined in {tmp_path}/a.py and {tmp_path}/b.py: one meaning a name"
    assert "tuning_db" in ONE_CLASS_A_NAME
