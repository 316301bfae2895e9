"""The cases of the soak: undisturbed, writers killed, a disk that fills up, a file that is deleted or replaced."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from fuseplan.tuning_db import Miss
from fuseplan.tuning_db.files import Database
from fuseplan.tuning_db.upkeep import check
from stored import HERE, RELU, plan, store_at

HERE_FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Size:
    """How much of a soak."""

    writers: int
    readers: int
    seconds: float
    kills: int


@dataclass
class Outcome:
    """What a case found."""

    text: str
    wrong: list[str] = field(default_factory=list)


class Crew:
    """The processes of one case, and what they have told."""

    def __init__(self, path: Path, size: Size, log: Path) -> None:
        self.path, self.log = path, log
        self.until = time.time() + size.seconds
        self.started = 0
        self.writers = [self.start("write") for _ in range(size.writers)]
        self.readers = [self.start("read") for _ in range(size.readers)]

    def start(self, what: str) -> subprocess.Popen[bytes]:
        """One more process."""
        self.started += 1
        name = f"{what} {self.started}"
        command = [sys.executable, "-m", "soak.worker", what, str(self.path), name, str(self.until)]
        output: IO[bytes]
        with (self.log / name).open("wb") as output:
            return subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, cwd=HERE_FOLDER.parent)

    def finish(self) -> list[str]:
        """Wait for all; what went wrong with them."""
        wrong = []
        for process in self.writers + self.readers:
            code = process.wait(timeout=300)
            if code not in (0, -9):
                wrong.append(f"a process ended with {code}")
        lines = [line for path in self.log.iterdir() for line in path.read_text(errors="replace").splitlines()]
        wrong += [line for line in lines if not line.startswith(("write ", "read ", "not kept"))]
        self.acknowledged = {line for line in lines if line.startswith("write ")}
        self.refused = lines.count("not kept")
        self.reads = sum(int(line.split()[1]) for line in lines if line.startswith("read "))
        return wrong


@contextmanager
def folder() -> Iterator[Path]:
    """A folder for one case, on a disk."""
    with tempfile.TemporaryDirectory(prefix="fuseplan-soak-") as name:
        (Path(name) / "log").mkdir()
        yield Path(name)


def plain(size: Size) -> Outcome:
    """Nobody disturbs them: every write is acknowledged, and there."""
    with folder() as place:
        crew = Crew(place / "tuning.db", size, place / "log")
        wrong = crew.finish()
        if crew.refused:
            wrong.append(f"{crew.refused} writes were not kept")
        return _judged(crew, wrong)


def killed(size: Size) -> Outcome:
    """Writers are killed at random moments, and others take their place."""
    rng = random.Random(0)
    with folder() as place:
        store_at(place / "tuning.db").add_plan(plan())  # on a busy machine all may be killed before one has written
        crew = Crew(place / "tuning.db", size, place / "log")
        kills = 0
        while kills < size.kills and time.time() < crew.until:
            time.sleep(rng.uniform(0, 1.6 * size.seconds / (size.kills + 1)))
            number = rng.randrange(size.writers)
            crew.writers[number].kill()
            crew.writers[number].wait()
            crew.writers[number] = crew.start("write")
            kills += 1
        outcome = _judged(crew, crew.finish())
        outcome.text += f", {kills} kills"
        return outcome


def full(size: Size) -> Outcome:
    """The disk is full: what was acknowledged before is there, and readers go on."""
    with folder() as place:
        disk = place / "disk"
        disk.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", "size=64M", "tmpfs", str(disk)]
        if os.getuid() != 0 or subprocess.run(mount, capture_output=True).returncode:
            return Outcome("not run: it takes the right to mount a tmpfs", ["needs root"])
        try:
            store_at(disk / "tuning.db").add_plan(plan())
            crew = Crew(disk / "tuning.db", size, place / "log")
            time.sleep(size.seconds / 4)
            _fill(disk / "ballast")
            time.sleep(size.seconds / 4)
            (disk / "ballast").unlink()
            return _judged(crew, crew.finish())
        finally:
            subprocess.run(["umount", "--lazy", str(disk)], check=True)


def _fill(ballast: Path) -> None:
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            return


def gone(size: Size) -> Outcome:
    """The file is deleted, and replaced by an older copy: writers go on in whatever is there, and readers never err.

    SQLite takes a journal by its name. That of a file which is gone may so be played back into the one that took its place,
    and mix the rows of both: there a reader says that a row is damaged, which is no error of its.
    """
    with folder() as place:
        path, copy = place / "tuning.db", place / "copy.db"
        store_at(copy).add_plan(plan())
        crew = Crew(path, size, place / "log")
        changes = 0
        while time.time() < crew.until - size.seconds / 10:
            time.sleep(size.seconds / 10)
            changes += 1
            if changes % 2:
                shutil.copy(copy, place / "next.db")
                (place / "next.db").rename(path)
            else:
                path.unlink(missing_ok=True)
        said = crew.finish()
        wrong = [line for line in said if not line.startswith("wrong: row damaged")]
        mixed = len(said) - len(wrong)
        wrong += [f"{problem}" for problem in check(Database(path))] if path.exists() else ["there is no file"]
        kept = f"{len(crew.acknowledged)} writes, {crew.reads} reads, {changes} times gone"
        return Outcome(f"{kept}, {mixed} rows told as damaged", wrong)


def _judged(crew: Crew, wrong: list[str]) -> Outcome:
    """Every acknowledged write must be in the file, and the file whole."""
    found = store_at(crew.path).find_measurements(RELU.key, HERE)
    there = set() if isinstance(found, Miss) else {one.variant for one in found}
    missing = crew.acknowledged - there
    if missing:
        wrong.append(f"{len(missing)} acknowledged writes are not there, such as {min(missing)}")
    wrong += [str(problem) for problem in check(Database(crew.path))]
    connection = sqlite3.connect(crew.path)
    if connection.execute("PRAGMA integrity_check").fetchone() != ("ok",):
        wrong.append("the file is not whole")
    connection.close()
    kept = f"{len(crew.acknowledged)} writes acknowledged, {crew.refused} not kept"
    return Outcome(f"{kept}, {len(missing)} lost, {crew.reads} reads", wrong)


CASES: dict[str, Callable[[Size], Outcome]] = {"plain": plain, "killed": killed, "full": full, "gone": gone}
