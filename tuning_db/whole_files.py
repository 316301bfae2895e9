"""Files that a person asks for, such as an export: written whole or not at all, and never over the database."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fuseplan.errors import StoreError
from fuseplan.tuning_db.repair import SIDE_FILES


def refuse_database(path: Path, *databases: Path | None) -> None:
    """StoreError where a file that is to be written is one of these databases, or what SQLite keeps beside it."""
    for database in databases:
        if database is not None and _is_of(path, database):
            raise StoreError(f"{path} is the database itself, or a part of it: name another file to write to")


def _is_of(path: Path, database: Path) -> bool:
    places = (os.path.realpath(database), os.path.join(os.path.realpath(database.parent), database.name))
    if os.path.realpath(path) in {f"{place}{suffix}" for place in places for suffix in ("", *SIDE_FILES)}:
        return True
    with suppress(OSError):  # one of them is not there
        return path.samefile(database)  # by another name, as hard links have, or where case does not count
    return False


def _is_stream(path: Path, place: Path) -> bool:
    """Whether what is behind it has to be written as it stands: /dev/stdout, even where that is a file, or a pipe."""
    if any(path.is_relative_to(root) for root in ("/dev", "/proc")) and place != Path(os.path.abspath(path)):
        return True
    return place.exists() and not place.is_file() and not place.is_dir()


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """Give the file to write; it takes the place of `path` at the end. StoreError with that name where it cannot be.

    >>> from tempfile import mkdtemp
    >>> folder = Path(mkdtemp())
    >>> with written_whole(folder / "a.txt") as part:
    ...     _ = part.write_text("all of it")
    >>> [file.name for file in folder.iterdir()]
    ['a.txt']
    """
    place = Path(os.path.realpath(path))  # of a link it is the target that is written
    part = place.parent / f"{place.name}.{os.getpid()}.part"
    try:
        if _is_stream(path, place):
            part = path
        yield part
        if part != path:
            part.replace(place)
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {error.strerror or error}") from None
    finally:
        if part != path:
            with suppress(OSError):
                part.unlink()
