"""What a worker that is none tells its parent: nobody listens."""

from __future__ import annotations


class Unheard:
    """Hears what a worker is at, and keeps it to itself."""

    def at(self, name: str, stage: str) -> None:
        """Nobody asks."""
