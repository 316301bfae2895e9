"""What takes seconds to find out of nvFuser, kept for the next process: that it runs here, and which large regions it
compiles in bearable time.

Only good news is kept, each as an empty file: what failed may have been mended since, and an empty file cannot be garbled.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from fuseplan.tuning_db.layers import places

FITS = "fits"
"""That a fusion of one op runs."""
_VARIABLES = ("LD_PRELOAD", "LD_LIBRARY_PATH")
"""What the libraries that a process loads depend on."""
_DRIVER = Path("/proc/driver/nvidia/version")


@dataclass(frozen=True)
class KnownRegions:
    """What is known, by a word or by the key of a region; `folder` is None where nothing can be kept.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     kept = KnownRegions(Path(folder) / "new")
    ...     before = FITS in kept
    ...     kept.add(FITS)
    ...     before, FITS in kept, FITS in KnownRegions(None)
    (False, True, False)
    """

    folder: Path | None

    @staticmethod
    def here() -> KnownRegions:
        """Beside the user's database, apart for each PyTorch, nvFuser, driver and kind of GPU that meet."""
        user = places(os.environ).user
        try:
            return KnownRegions(None if user is None else user.parent / "nvfuser" / _meeting())
        except OSError:  # files that come and go
            return KnownRegions(None)

    def __contains__(self, what: str) -> bool:
        """Whether it was found to be so."""
        try:
            return self.folder is not None and (self.folder / what).is_file()
        except OSError:
            return False

    def add(self, what: str) -> None:
        """Note that it is so. Where that cannot be written, the next process finds it out again."""
        if self.folder is not None:
            with suppress(OSError):
                self.folder.mkdir(parents=True, exist_ok=True)
                (self.folder / what).touch()

    def drop(self, what: str) -> None:
        """It is not so any longer."""
        if self.folder is not None:
            with suppress(OSError):
                (self.folder / what).unlink(missing_ok=True)


@cache
def _meeting() -> str:
    """A name for all that decides whether nvFuser works: another file, of its own or of how regions are put to it, another
    version or driver is another name."""
    spec = importlib.util.find_spec("nvfuser_direct")
    folders = [Path(one) for one in (spec.submodule_search_locations or ())] if spec is not None else []
    beside = [
        one for folder in folders for one in folder.parent.glob("nvfuser*/*")
    ]  # its libraries, and what was installed
    files = sorted({one for one in (*beside, *Path(__file__).parent.glob("*.py")) if one.is_file()})
    facts: list[object] = [sys.version, torch.__version__, torch.version.cuda, *map(os.environ.get, _VARIABLES)]
    facts += [(str(one), one.stat().st_size, one.stat().st_mtime_ns) for one in files]
    if torch.cuda.is_available():
        facts += sorted({torch.cuda.get_device_properties(i).name for i in range(torch.cuda.device_count())})
        facts += [one.read_text(encoding="utf-8") for one in (_DRIVER,) if one.is_file()]
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]
