"""Amounts of memory as people write and read them."""

from __future__ import annotations

import math
import re

from fuseplan.errors import OptionError

_UNITS = {
    "": 1, "b": 1,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip
_WORDS = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)")
_SHARE = re.compile(r"(\d+(?:\.\d+)?)\s*%")


def memory_amount(value: object, what: str) -> int | float:
    """Bytes as an int, or a share of a device's memory as a float; OptionError where `value` means neither.

    >>> memory_amount("4GB", "a bound"), memory_amount("1.5 GiB", "a bound"), memory_amount(1024, "a bound")
    (4000000000, 1610612736, 1024)
    >>> memory_amount("20%", "a bound")
    0.2
    """
    found: int | float = 0
    if isinstance(value, int) and not isinstance(value, bool):
        found = value
    elif isinstance(value, str):
        written = value.strip().lower()
        if share := _SHARE.fullmatch(written):
            found = float(share[1]) / 100
            found = found if found <= 1 else 0
        elif (amount := _WORDS.fullmatch(written)) and amount[2] in _UNITS:
            bytes_ = float(amount[1]) * _UNITS[amount[2]]
            found = int(bytes_) if math.isfinite(bytes_) else 0
    if found <= 0:
        raise OptionError(
            f"{what} is an amount of memory such as 4GB, 512MiB or a number of bytes, or a share of the device's such as 20%,"
            f" and more than nothing, not {value!r}"
        )
    return found


def spelled_bytes(amount: int) -> str:
    """So many bytes, for people.

    >>> spelled_bytes(4_000_000_000), spelled_bytes(12_345_678), spelled_bytes(900)
    ('4.0 GB', '12 MB', '1 kB')
    """
    if amount >= 10**9:
        return f"{amount / 10**9:.1f} GB"
    return f"{amount / 10**6:.0f} MB" if amount >= 10**6 else f"{-(-amount // 1000)} kB"
