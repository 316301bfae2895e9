"""What a query string asks for. It is checked in full before anything is read: what is not known is refused."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, urlencode

from fuseplan.executors.known import known_executors
from fuseplan.plan import LAUNCHES

MOST_BYTES = 8000
"""Of a query string: a name of 400 letters takes 4,800."""
_MOST_FIELDS = 40


class Refused(Exception):  # noqa: N818  # an answer, not an error of ours
    """A request that gets no page: with a status of 4xx and one line that holds nothing of what was asked."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status, self.text = status, text


class NotThere(Refused):
    """What was asked for is not in the database."""

    def __init__(self, text: str = "there is no such page") -> None:
        super().__init__(404, text)


@dataclass(frozen=True)
class Param:
    """One name that may stand in a query string, and what its value must look like."""

    name: str
    pattern: str = r"[^\0]{0,400}"

    def allows(self, value: str) -> bool:
        """Whether the value is of that form."""
        return re.fullmatch(self.pattern, value, re.DOTALL) is not None


_DAY = r"(20\d\d-[01]\d-[0-3]\d)?"


@dataclass(frozen=True)
class Filters:
    """What the bar at the top narrows every page to. An empty one narrows nothing."""

    gpu: str = ""
    """The name of the GPU, or of the CPU where there is none."""
    torch: str = ""
    versions: tuple[tuple[str, str], ...] = ()
    """By the names of executors."""
    launch: str = ""
    model: str = ""
    since: str = ""
    """A day: what changed on it or later."""
    until: str = ""

    def any(self) -> bool:
        """Whether something is narrowed."""
        return bool(self.versions or any(self.plain().values()))

    def plain(self) -> dict[str, str]:
        """All but the versions, by name."""
        return {name: value for name, value in vars(self).items() if name != "versions"}


VERSIONED = tuple(traits.name for traits in known_executors() if not traits.with_torch)
"""The executors that have releases of their own: pages tell their versions, and filter by them."""
COMMON = (
    Param("db"), Param("gpu"), Param("torch"), *map(Param, VERSIONED), Param("launch", f"({'|'.join(LAUNCHES)})?"),
    Param("model"), Param("since", _DAY), Param("until", _DAY),
)  # fmt: skip
"""What each page knows: which database, and the filters."""


@dataclass(frozen=True)
class Ask:
    """A checked query string.

    >>> ask = parse("gpu=NVIDIA+H200&page=2", [Param("page", r"\\d{1,6}")])
    >>> ask["page"], ask["sort"], ask.filters.gpu
    ('2', '', 'NVIDIA H200')
    """

    values: Mapping[str, str] = field(default_factory=dict)

    def __getitem__(self, name: str) -> str:
        return self.values.get(name, "")

    @property
    def filters(self) -> Filters:
        """The filters of the bar."""
        versions = tuple((name, self[name]) for name in VERSIONED if self[name])
        return Filters(**{name: self[name] for name in Filters().plain()}, versions=versions)

    def common(self) -> dict[str, str]:
        """What a link to another page carries on."""
        return {param.name: self[param.name] for param in COMMON if self[param.name]}


def parse(query: str, params: Iterable[Param]) -> Ask:
    """The values of a query string, or Refused."""
    if len(query) > MOST_BYTES:
        raise Refused(414, "the query string is too long")
    try:
        pairs = parse_qsl(
            query, keep_blank_values=True, strict_parsing=bool(query), errors="strict", max_num_fields=_MOST_FIELDS
        )
    except ValueError:
        raise Refused(400, "the query string cannot be read") from None
    known = {param.name: param for param in (*COMMON, *params)}
    values: dict[str, str] = {}
    for name, value in pairs:
        if name not in known or name in values or not known[name].allows(value):
            raise Refused(400, "the query string holds what this page does not know")
        values[name] = value
    return Ask({name: value for name, value in values.items() if value})


def written(values: Mapping[str, str]) -> str:
    """A query string, in a fixed order, without what is empty.

    >>> written({"q": "a b", "gpu": "", "db": "é"})
    'db=%C3%A9&q=a+b'
    """
    return urlencode(sorted((name, value) for name, value in values.items() if value))
