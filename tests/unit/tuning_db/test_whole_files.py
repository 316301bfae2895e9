"""Files that a person asks for: whole or not at all, and never in the place of a link or a device."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from fuseplan.errors import StoreError
from fuseplan.tuning_db.whole_files import written_whole


def test_a_link_stays_one_and_its_target_is_written(tmp_path: Path) -> None:
    target, link = tmp_path / "far" / "rows", tmp_path / "link"
    target.parent.mkdir()
    target.write_text("of yesterday")
    link.symlink_to(target)
    with written_whole(link) as part:
        part.write_text("of today")
    assert link.is_symlink()
    assert target.read_text() == "of today"
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["far", "link", "rows"]


def fail_half_way(path: Path) -> None:
    with written_whole(path) as part:
        part.write_text("half of it")
        raise OSError("planted")


def test_what_stands_there_stays_where_writing_fails(tmp_path: Path) -> None:
    (tmp_path / "rows").write_text("of yesterday")
    with pytest.raises(StoreError, match="rows cannot be written: planted"):
        fail_half_way(tmp_path / "rows")
    assert (tmp_path / "rows").read_text() == "of yesterday"
    assert list(tmp_path.iterdir()) == [tmp_path / "rows"]


@pytest.mark.skipif(not os.path.exists("/dev/stdout"), reason="this system has no /dev/stdout")
def test_stdout_is_written_to_wherever_it_leads(tmp_path: Path) -> None:
    code = "from pathlib import Path; from fuseplan.tuning_db.whole_files import written_whole\n"
    code += "with written_whole(Path('/dev/stdout')) as part: part.write_text('all of it')\n"
    before = os.readlink("/dev/stdout")
    with (tmp_path / "out").open("w") as out:
        subprocess.run([sys.executable, "-c", code], stdout=out, check=True)
    assert (tmp_path / "out").read_text() == "all of it"
    assert os.readlink("/dev/stdout") == before


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="this system has no /dev/shm")
def test_a_file_in_shared_memory_is_one_as_any() -> None:
    with TemporaryDirectory(dir="/dev/shm") as folder:
        test_what_stands_there_stays_where_writing_fails(Path(folder))
