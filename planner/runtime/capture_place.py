"""Where a program is captured in CUDA graphs, and which of its calls cannot run there: PyTorch's trees are of one thread each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch._inductor.cudagraph_trees import CUDAGraphTreeManager, get_manager

from fuseplan.executors.flat import Boxed
from fuseplan.stats import count

OFTEN = 100
"""After so many calls that had to run plain for an output that is held, whoever asks is told."""
_LAST: WeakKeyDictionary[CUDAGraphTreeManager, Any] = WeakKeyDictionary()
"""The stream on which graphs of these trees were sent last."""


@dataclass
class CapturePlace:
    """Where a program is captured: trees are of one thread, and so is what they know of outputs that are held."""

    device: int = 0
    remarks: list[str] = field(default_factory=list)
    manager: CUDAGraphTreeManager | None = None
    """The trees that have captured it."""
    kept: int = 0
    """Calls that ran plain for an output that was held."""

    def is_elsewhere(self) -> bool:
        """Whether this call can be no part of the trees: another thread's, or captured by the caller itself."""
        if is_capturing():
            return True
        try:
            here = get_manager(self.device, create_if_none_exists=False)
        except AssertionError:  # older versions of torch know no trees in threads that are not the first
            return True
        return self.manager is not None and here is not self.manager

    def captured(self, captured: Boxed, args: list[Any]) -> Sequence[Any]:
        """Run what is captured, after all that the trees were sent on other streams."""
        if self.manager is not None:
            follow(self.manager, self.device)
            return captured(args)
        outputs = captured(args)
        self.manager = get_manager(self.device, create_if_none_exists=False)
        if self.manager is not None:
            follow(self.manager, self.device)
        return outputs

    def keep(self) -> None:
        """Count a call that runs plain for an output that is held."""
        count("calls run plain to keep an earlier output")
        self.kept += 1
        if self.kept == OFTEN:
            self.remarks.append(
                f"{OFTEN} calls ran plain, since something was still held of what an earlier one had made: the launch plain"
                " suits such a program better"
            )


def follow(manager: CUDAGraphTreeManager, device: int) -> None:
    """Make the current stream wait for the one on which the trees were used last, if that is another."""
    last = _LAST.get(manager)
    if last is None or last.cuda_stream != _raw_stream(device):
        here = torch.cuda.current_stream(device)
        if last is not None:
            here.wait_stream(last)
        _LAST[manager] = here


def _raw_stream(device: int) -> int:
    return int(torch._C._cuda_getCurrentRawStream(device))


def is_capturing() -> bool:
    """Whether the caller captures a CUDA graph of its own."""
    return torch.cuda.is_current_stream_capturing()
