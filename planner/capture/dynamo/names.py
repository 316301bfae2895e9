"""What a person calls a program that Dynamo captured: the class of the module, or the function, that was compiled."""

from __future__ import annotations

import re
import sys
from typing import Any

import torch
from torch._dynamo import external_utils

_RESUMED = re.compile(r"torch_dynamo_resume_in_(.+)_at_(\d+)")


def name_of(gm: Any) -> str:
    """The name of what is being compiled now; of a graph alone, the name of the function that its first call stands in."""
    try:
        return _name_of(gm)
    except Exception:  # noqa: BLE001 -- it is read off Dynamo's own frames, and a name is no reason to fail
        return "program"


def _name_of(gm: Any) -> str:
    root = translator()
    if root is not None:
        owner = root.f_locals.get("self")
        if root.f_code.co_filename == external_utils.__file__:  # around what is torch's own
            called = root.f_locals.get("fn")
            owner = getattr(called, "__self__", called)
        if isinstance(owner, torch.nn.Module) and not _RESUMED.fullmatch(root.f_code.co_name):
            return type(owner).__name__
        return _said(getattr(root.f_code, "co_qualname", root.f_code.co_name))
    for node in gm.graph.nodes:
        first = re.search(r", in (\S+)", node.meta.get("stack_trace") or "")
        if first is not None:
            return _said(first[1])
    return "program"


def translator() -> Any:
    """Dynamo's translator of the outermost frame, which is on the stack of whoever is called to compile."""
    frame = sys._getframe(1)
    while frame is not None:
        root = getattr(frame.f_locals.get("self"), "root_tx", None)
        if root is not None and hasattr(root, "f_code") and hasattr(root, "f_locals"):
            return root
        frame = frame.f_back  # type: ignore[assignment]
    return None


def _said(name: str) -> str:
    """A function's name, without where it was defined and without what Dynamo adds after a graph break.

    >>> _said("main.<locals>.loss"), _said("torch_dynamo_resume_in_step_at_25"), _said("Model.forward")
    ('loss', 'step from line 25', 'Model')
    """
    resumed = _RESUMED.fullmatch(name.split(".")[-1])
    if resumed is not None:
        return f"{resumed[1]} from line {resumed[2]}"
    return name.rpartition("<locals>.")[2].removesuffix(".forward")
