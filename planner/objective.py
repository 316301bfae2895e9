"""What a program is tuned for: the least time, the least memory, or the least time within a bound of memory. No torch."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TypeVar

from fuseplan.errors import OptionError, StoreError
from fuseplan.sizes import memory_amount, spelled_bytes

T = TypeVar("T")
OBJECTIVES = ("time", "memory")
ALIKE = 0.02
"""The share of the least peak by which others may be above it and count as equal: allocators round what they are asked for."""
ALIKE_BYTES = 4 * 2**20
"""Bytes by which they may be above it in any case. One plan's peak on a CPU differs by up to 3 MB from one process to the next, where it
is some ten MB; a GPU's allocator takes 2 MiB and more at a time."""
_WITHIN = re.compile(r"time within ([1-9]\d{0,17}) B")
_TOO_MUCH = 10**18
"""Bytes that no device has: a bound is written with 18 digits at most."""
_UNKNOWN = "its peak is unknown"


@dataclass(frozen=True)
class Objective:
    """Objective of a plan, by which it is chosen among all that are right: part of where the plan holds.

    >>> str(Objective()), str(Objective("memory")), str(Objective(within=20 * 2**30))
    ('time', 'memory', 'time within 21474836480 B')
    """

    least: str = "time"
    """What is to be the least."""
    within: int | float | None = None
    """Bytes that a plan may take at its peak; a float is a share of all memory of a device, until `on` says which."""

    def __post_init__(self) -> None:
        if self.least not in OBJECTIVES:
            raise OptionError(f"objective is {' or '.join(OBJECTIVES)}, not {self.least!r}")
        if self.within is not None and self.least != "time":
            raise OptionError("objective memory takes the least there is: max_memory bounds objective time alone")
        if self.within is not None and self.within >= _TOO_MUCH:
            raise OptionError(f"max_memory is below {_TOO_MUCH:,} bytes: that is more than any device has")

    @staticmethod
    def asked(least: str = "time", max_memory: object = None) -> Objective:
        """Objective by the values of both options; OptionError where one is wrong, or they do not go together.

        >>> Objective.asked("time", "20GiB") == Objective(within=20 * 2**30), Objective.asked("time", "20%")
        (True, Objective(least='time', within=0.2))
        >>> Objective.asked("time", 0.2) == Objective.asked("time", "20%")
        True
        """
        if max_memory is None or (isinstance(max_memory, float) and 0 < max_memory <= 1):
            return Objective(least, max_memory)
        return Objective(least, memory_amount(max_memory, "max_memory"))

    @staticmethod
    def parse(text: str) -> Objective:
        """Objective that a text of the database spells; StoreError where it spells none.

        >>> Objective.parse("time within 1024 B")
        Objective(least='time', within=1024)
        """
        if text in OBJECTIVES:
            return Objective(text)
        bound = _WITHIN.fullmatch(text)
        if bound is None:
            raise StoreError(f"{text[:40]!r} is no objective")
        return Objective(within=int(bound[1]))

    def __str__(self) -> str:
        if self.within is None:
            return self.least
        bound = f"{self.within:.6%}" if isinstance(self.within, float) else f"{self.within} B"
        return f"{self.least} within {bound}"

    @property
    def short(self) -> str:
        """What people read of it.

        >>> Objective().short, Objective(within=20_000_000_000).short
        ('time', 'time within 20.0 GB')
        """
        return f"time within {spelled_bytes(self.within)}" if isinstance(self.within, int) else str(self)

    @property
    def option(self) -> str:
        """The option of `fuseplan tune` that means it, after a space; nothing for time.

        >>> Objective("memory").option, Objective(within=1024).option, Objective(within=0.25).option, Objective().option
        (' --objective memory', ' --max-memory 1024', ' --max-memory 25%', '')
        """
        if self.within is None:
            return f" --objective {self.least}" if self.spares else ""
        return f" --max-memory {self.within if isinstance(self.within, int) else f'{100 * self.within:.15g}%'}"

    def beside(self, launch: str) -> str:
        """What people read of a launch and an objective, which is said where it is not time.

        >>> Objective().beside("plain"), Objective("memory").beside("plain")
        ('plain', 'plain, for memory')
        """
        return f"{launch}, for {self.short}" if self.spares else launch

    @property
    def spares(self) -> bool:
        """Whether memory counts."""
        return self != TIME

    def on(self, memory: Callable[[], int]) -> Objective:
        """Objective on a device with so many bytes of memory, which are asked for where the bound is a share of them.

        >>> str(Objective(within=0.25).on(lambda: 4096))
        'time within 1024 B'
        """
        return replace(self, within=max(1, round(self.within * memory()))) if isinstance(self.within, float) else self

    def refuse_share(self) -> None:
        """OptionError where the bound is a share: a device of another machine does not say how much memory it has."""
        if isinstance(self.within, float):
            raise OptionError(
                "max_memory is a number of bytes for a CPU of another machine, which does not say how much it has"
            )

    def fits(self, peak: int | None) -> bool:
        """Whether a plan with this peak is within the bound; one whose peak is unknown is not.

        >>> Objective().fits(None), Objective(within=10).fits(None), Objective(within=10).fits(10)
        (True, False, True)
        """
        return self.within is None or (peak is not None and peak <= self.within)

    def among(self, found: Iterable[T], peak: Callable[[T], int | None]) -> list[T]:
        """Those of which the fastest is the one to take: all for time, all that fit for a bound; for memory, and where nothing
        fits, those with the least peak. Where no peak is known, all.

        >>> peaks = {"a": 10**9, "b": 10**9 + 10**7, "c": 3 * 10**9, "d": None}
        >>> asked = ("memory", f"time within {3 * 10**9} B", "time within 9 B")
        >>> [Objective.parse(text).among(peaks, peaks.get) for text in asked]
        [['a', 'b'], ['a', 'b', 'c'], ['a', 'b']]
        """
        every = list(found)
        if not self.spares:
            return every
        fit = [one for one in every if self.fits(peak(one))] if self.within is not None else []
        least = min((bytes_ for one in every if (bytes_ := peak(one)) is not None), default=None)
        if fit or least is None:
            return fit or every
        most = least + max(ALIKE * least, ALIKE_BYTES)
        return [one for one in every if (bytes_ := peak(one)) is not None and bytes_ <= most]

    def unmet(self, peak: int | None) -> str:
        """What is said of a plan with this peak that was taken though it does not fit; nothing where it does.

        >>> Objective(within=1_000_000_000).unmet(2_000_000_000)
        'nothing fits into 1.0 GB: the least is 2.0 GB'
        """
        if not self.spares or (self.fits(peak) and peak is not None):
            return ""
        if peak is None:
            return f"{_UNKNOWN}, and so is that of all others"
        return f"nothing fits into {spelled_bytes(int(self.within or 0))}: the least is {spelled_bytes(peak)}"


TIME = Objective()
