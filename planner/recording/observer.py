"""The observer of a recording: what `hook.hooked` tells of each program that is compiled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fuseplan.errors import FuseplanError
from fuseplan.log import logger
from fuseplan.recording.book import Recording


class ProgramObserver:
    """Writes each program down that is compiled, and has its calls counted."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording

    def met(self, wrapper: object, gm: Any, example_inputs: Sequence[Any]) -> Callable[[Any], Any] | None:
        """Write a program down; whatever goes wrong is noted, and no concern of the script."""
        recording = self.recording
        if not recording.open:
            return None
        recording.came = True
        try:
            from fuseplan.recording.meeting import meet  # brings what torch need not import until something is compiled

            return meet(recording, gm, example_inputs)
        except FuseplanError as error:
            self.note(f"{recording.called(_name_of(gm))}: {error}")
        except Exception as error:  # noqa: BLE001 – whatever goes wrong is no concern of the script
            logger.warning("a program could not be recorded", exc_info=True)
            self.note(f"{recording.called(_name_of(gm))}: {type(error).__name__}: {error}")
        return None

    def note(self, text: str) -> None:
        """Note what cannot be seen."""
        self.recording.note(text)


def _name_of(gm: Any) -> str:
    from fuseplan.capture.dynamo.names import name_of  # brings torch, which the script may not need

    return name_of(gm)
