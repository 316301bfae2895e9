"""What the first program that a worker compiles would wait for: it is done while nobody waits."""

from __future__ import annotations

import importlib.util
from contextlib import suppress

import torch

from fuseplan.backend import fuseplan_backend
from fuseplan.plan import Plan


def warm_up() -> None:
    """Bring Dynamo, AOTAutograd and Inductor, and trace something small. Nothing runs on a GPU: another worker may measure there.

    >>> import sys
    >>> warm_up()
    >>> "torch._inductor.compile_fx" in sys.modules
    True
    """
    with suppress(Exception):  # whoever needs what is missing says so
        if importlib.util.find_spec("triton"):
            importlib.import_module("triton")
        importlib.import_module("torch._inductor.compile_fx")
        options = {"plan": Plan("aten")}
        compiled = torch.compile(lambda x: (x * 2).sum(), backend=fuseplan_backend, options=options)  # type: ignore[arg-type]
        compiled(torch.ones(2, requires_grad=True)).backward()
    torch._dynamo.reset()
