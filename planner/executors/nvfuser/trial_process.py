"""The process in which large regions are compiled first: it hears a region's JSON, and answers when it is through.

However compiling ends, as long as it ends, is no reason against compiling it in the process that asked: it will meet the
same error there, and memory that is short here may not be short there.
"""

from __future__ import annotations

import math
import selectors
import signal
import sys
from contextlib import suppress
from typing import BinaryIO

from fuseplan.errors import FuseplanError
from fuseplan.executors.nvfuser.trial import ANSWERS, SECONDS
from fuseplan.wire import codec
from fuseplan.wire.serve import AnswerPipe

IDLE_SECONDS = 60.0
"""How long the process waits for another region: its hold on the GPU costs memory."""


def main() -> None:
    """Answer until nobody asks any longer."""
    answers = AnswerPipe(ANSWERS)
    import torch

    from fuseplan.executors.nvfuser.executor import build
    from fuseplan.graph import Graph

    answers.send("ready")
    while _waiting(sys.stdin.buffer) and (line := sys.stdin.buffer.readline()):
        signal.alarm(math.ceil(SECONDS) + 5)  # ends this process inside of nvFuser too, should who asked be gone
        answer = "failed"
        with suppress(FuseplanError, RuntimeError):
            build(Graph.from_json(codec.from_json(str, line)))
            torch.cuda.synchronize()
            answer = "done"
        signal.alarm(0)
        torch.cuda.empty_cache()
        answers.send(answer)


def _waiting(source: BinaryIO) -> bool:
    """Whether something comes from `source` within the idle time; its end counts too."""
    with selectors.DefaultSelector() as selector:
        selector.register(source, selectors.EVENT_READ)
        return bool(selector.select(IDLE_SECONDS))


if __name__ == "__main__":
    main()
