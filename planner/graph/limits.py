"""What a graph may hold: the closed sets and the bounds that validation and reading share."""

from __future__ import annotations

MAX_DOCUMENT = 64 * 2**20
"""Characters of a JSON document; 10,000 ops take about 3 million."""
MAX_NAME = 1024
MAX_STRING = 2**16
MAX_EXPRESSION = 2**13
MAX_CONSTANT = 2**16
"""Bytes of a constant: larger tensors are inputs."""
MAX_RANK = 64
MAX_NESTING = 32
LOW_INT, HIGH_INT = -(2**63), 2**64 - 1
MAX_SIZE = 2**63 - 1

ITEM_SIZES = {
    "bool": 1, "uint8": 1, "int8": 1, "uint16": 2, "int16": 2, "uint32": 4, "int32": 4, "uint64": 8, "int64": 8,
    "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "complex32": 4, "complex64": 8, "complex128": 16,
    "float8_e4m3fn": 1, "float8_e4m3fnuz": 1, "float8_e5m2": 1, "float8_e5m2fnuz": 1, "float8_e8m0fnu": 1,
    "float4_e2m1fn_x2": 1, "qint8": 1, "quint8": 1, "qint32": 4, "quint4x2": 1, "quint2x4": 1,
    "bits8": 1, "bits16": 2, "bits1x8": 1, "bits2x4": 1, "bits4x2": 1,
    **{f"{sign}int{bits}": 1 for bits in range(1, 8) for sign in ("", "u")},
}  # fmt: skip
"""Every torch dtype by name, with the bytes of one item."""

LAYOUTS = frozenset(
    {"strided", "sparse_coo", "sparse_csr", "sparse_csc", "sparse_bsr", "sparse_bsc", "jagged", "_mkldnn"}
)
MEMORY_FORMATS = frozenset({"contiguous_format", "preserve_format", "channels_last", "channels_last_3d"})


def short(found: object, width: int = 60) -> str:
    """What was found, for an error message: never a ten-megabyte line, nor a walk down a bottomless tuple."""
    if isinstance(found, str):
        shown = ascii(found[: width + 1])
    elif isinstance(found, int):
        shown = integer(found)
    else:
        shown = f"a {type(found).__name__}"
    return shown if len(shown) <= width else f"{shown[: width - 1]}…"


def integer(number: int) -> str:
    """An int as Python reads it; in hex where Python refuses to write so many digits."""
    return repr(number) if number.bit_length() <= 1024 else hex(number)


def place(index: int, target: object) -> str:
    """Where in a graph: an op is easier to find by its target than by its number."""
    if not isinstance(target, str):
        return f"op {index}"
    return f"op {index} ({target if target.isprintable() and len(target) <= MAX_NAME else short(target)})"
