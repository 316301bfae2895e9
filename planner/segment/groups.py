"""Sets of what hangs together."""

from __future__ import annotations

from collections.abc import Iterable


def connected(items: Iterable[int], pairs: Iterable[tuple[int, int]]) -> list[list[int]]:
    """Return the sets of items that pairs tie together, at once or through one another, in the order of their first items.

    A pair of which one is no item ties nothing.

    >>> connected([1, 2, 3, 4], [(1, 3), (3, 4), (2, 9)])
    [[1, 3, 4], [2]]
    """
    root = {item: item for item in items}

    def find(item: int) -> int:
        while root[item] != item:
            root[item] = root[root[item]]
            item = root[item]
        return item

    for one, other in pairs:
        if one in root and other in root:
            root[find(other)] = find(one)
    groups: dict[int, list[int]] = {}
    for item in root:
        groups.setdefault(find(item), []).append(item)
    return list(groups.values())
