"""How often Dynamo compiles one function before it gives up and runs it eagerly. All that is read of it for that is here."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from fuseplan.capture.dynamo.names import translator
from fuseplan.log import logger


def is_last() -> bool:
    """Whether what is being compiled now is the last that Dynamo compiles of its function, by `recompile_limit`: as far as
    this torch tells.
    """
    try:
        from torch._dynamo.cache_size import _has_same_id_matched_objs
        from torch._dynamo.eval_frame import _debug_get_cache_entry_list

        root = translator()
        if root is None:
            return False
        frame, entries = SimpleNamespace(f_locals=root.f_locals), _debug_get_cache_entry_list(root.f_code)
        before = sum(bool(_has_same_id_matched_objs(frame, one)) for one in entries)  # type: ignore[arg-type]
        return before + 1 >= torch._dynamo.config.recompile_limit
    except Exception:  # noqa: BLE001 -- private to torch: without it, sizes are fenced in as if there were no limit
        logger.debug("Dynamo's recompile limit cannot be seen", exc_info=True)
        return False
