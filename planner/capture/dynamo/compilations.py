"""What Dynamo has compiled of one function: how often it does so before it gives up and runs it eagerly, and how it is made to compile
anew. All that is read of it for that is here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from types import CodeType, FrameType, SimpleNamespace
from typing import Any

import torch
import torch.utils.checkpoint
from torch._guards import CompileContext

from fuseplan.capture.dynamo.names import translator
from fuseplan.log import logger

_CHECKPOINTS = torch.utils.checkpoint.__file__
_hooks: Any = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", lambda _: None)


_LEFT = 4
"""One of so many compilations that Dynamo grants to a function is for whatever else is asked of it: to be trained, once it was evaluated,
or to compute in another dtype."""


def is_last() -> bool:
    """Whether what is being compiled now is the last that sizes should take of those that Dynamo compiles of its function, by
    `recompile_limit`: as far as this torch tells.
    """
    try:
        from torch._dynamo.cache_size import _has_same_id_matched_objs
        from torch._dynamo.eval_frame import _debug_get_cache_entry_list

        root = translator()
        if root is None:
            return False
        frame, entries = SimpleNamespace(f_locals=root.f_locals), _debug_get_cache_entry_list(root.f_code)
        before = sum(bool(_has_same_id_matched_objs(frame, one)) for one in entries)  # type: ignore[arg-type]
        most: int = torch._dynamo.config.recompile_limit
        return before + 1 >= most - most // _LEFT
    except Exception:  # noqa: BLE001 -- private to torch: without it, sizes are fenced in as if there were no limit
        logger.debug("Dynamo's recompile limit cannot be seen", exc_info=True)
        return False


@dataclass(frozen=True)
class Compilation:
    """One of those that Dynamo keeps of a function."""

    code: CodeType
    number: Any

    @staticmethod
    def now() -> Compilation | None:
        """The one that is being made; None where nobody would find it again."""
        root, number = translator(), CompileContext.current_compile_id()
        return None if root is None or number is None else Compilation(root.f_code, number)

    def forget(self) -> str | None:
        """Have the function compiled anew when it is called next. Returns why it can't be had; what is running ends as it began."""
        try:
            return self._forget()
        except Exception as error:  # noqa: BLE001 -- private to torch: without it, what is compiled stays
            return f"this torch does not let it be compiled anew ({type(error).__name__}: {error})"

    def _forget(self) -> str | None:
        if compiles_nothing_anew():
            return "torch was asked to compile nothing anew"
        from torch._dynamo.eval_frame import _debug_get_cache_entry_list
        from torch._dynamo.guards import DeletedGuardManagerWrapper

        entries = _debug_get_cache_entry_list(self.code)
        most = torch._dynamo.config.recompile_limit // 2  # what is forgotten counts, and others need the rest
        if len(entries) + 1 > most:
            return "torch.compile would compile the function too often"
        mine = next((one for one in entries if one.compile_id == self.number), None)
        state = None if mine is None else mine.guard_manager.extra_state
        if mine is None or state is None:
            return "it is no longer what torch runs"
        state.invalidate(mine, DeletedGuardManagerWrapper("there is a new plan"))
        return None


def compiles_nothing_anew() -> bool:
    """Whether torch was asked to compile nothing more, or whoever calls now has something look at each operator that is run."""
    asked = torch._dynamo.config.error_on_recompile or _stance() != "default"
    return bool(asked or torch._C._len_torch_dispatch_stack())


def _stance() -> str:
    from torch._dynamo import eval_frame

    return str(eval_frame._stance.stance)


@contextmanager
def compiling_alone() -> Iterator[bool]:
    """Whether nobody else compiles, and nobody will while this lasts: Dynamo has one thread at a time compile. It waits for none.

    As while Dynamo compiles it is said to all threads that something is being compiled: without that, torch refuses to call what is
    compiled in any thread while one of them traces (pytorch/pytorch#126024).
    """
    from torch._dynamo.convert_frame import compile_lock

    if not compile_lock.acquire(blocking=False):
        yield False
        return
    before, torch.compiler._is_compiling_flag = torch.compiler._is_compiling_flag, True
    try:
        yield True
    finally:
        torch.compiler._is_compiling_flag = before
        compile_lock.release()


def is_computed_again() -> bool:
    """Whether what is called now is computed once more in a backward, or is that: with checkpoints, and where hooks decide what is
    saved. Both times it has to compute the same.
    """
    return torch._C._current_graph_task_id() != -1 or _hooks(True) is not None


def is_in_checkpoint() -> bool:
    """Whether some caller is torch's own checkpoint: the first of two times shows no other sign of it where that is reentrant."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename == _CHECKPOINTS:
            return True
        frame = frame.f_back
    return False


def keeps_graph() -> bool:
    """Whether a backward is under way that leaves all that was saved for it, as with `retain_graph=True`."""
    return bool(torch._C._autograd._get_current_graph_task_keep_graph())


def calling_first(before: Callable[..., None], compiled: Callable[..., Any]) -> Callable[..., Any]:
    """What was compiled, with something done first at each call, of its arguments. Of what is to be pickled Dynamo wants the very object.

    >>> calling_first(lambda x: print("first", x), lambda x: x + 1)(1)
    first 1
    2
    """
    if hasattr(compiled, "serialize_compile_artifacts"):
        return compiled

    @wraps(compiled)  # Dynamo looks for what a backend has said of it
    def call(*args: Any) -> Any:
        before(*args)
        return compiled(*args)

    return call
