"""The entry point of the process that workers are forked from. What is imported here is all that a worker waits for at its first job."""

from __future__ import annotations

import gc
import importlib
import importlib.util
import os
import sys

from fuseplan.measure.process import TORCHS
from fuseplan.wire.branching import serve

NVML = "PYTORCH_NVML_BASED_CUDA_CHECK"
"""The variable by which torch asks whether there is a GPU without opening one."""


def main() -> None:
    """Import, and become workers. Where a fork could not use a GPU this ends, and workers begin by themselves."""
    number = int(sys.argv[1])
    try:
        _bring()
    except Exception:  # noqa: BLE001 -- a worker that begins by itself says what is missing
        return
    gc.collect()
    gc.freeze()  # what is collected in a branch would be copied
    if _can_use_gpus():
        serve(number, _become)
    os._exit(0)  # taking torch apart takes longer than anybody waits for


def _bring() -> None:
    """What workers import, and no more than that: nothing runs, and no GPU is opened, since that can't be shared. Whoever asks whether there
    is one at all asks NVML.
    """
    known, before = os.environ.get(NVML), set(os.environ)
    os.environ[NVML] = "1"
    try:
        import fuseplan.measure.worker.answer
        import fuseplan.measure.worker.warm
        import fuseplan.measure.worker.workplace  # noqa: F401

        if importlib.util.find_spec("triton"):
            importlib.import_module("triton")
        importlib.import_module("torch._inductor.compile_fx")
    finally:
        if known is None:
            del os.environ[NVML]
        else:
            os.environ[NVML] = known
        for name in {*TORCHS} - before:  # of the variables and folders of now: a branch has its own
            os.environ.pop(name, None)


def _can_use_gpus() -> bool:
    """Whether a fork of this process could: torch refuses where this one has asked the driver anything."""
    if (pid := os.fork()) == 0:
        torch = sys.modules.get("torch")
        os._exit(torch is None or torch.cuda._is_in_bad_fork())
    return os.waitpid(pid, 0)[1] == 0


def _become() -> None:
    from fuseplan.measure.worker.serve import main as serve_jobs

    serve_jobs()


if __name__ == "__main__":
    main()
