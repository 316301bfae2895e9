"""A program that can be carried to another process: the Dynamo graph as JSON, and a module rebuilt from it.

A worker measures any plan with it by `torch.compile(loaded.module, backend="fuseplan", options={"plan": …})`, beside
eager and plain torch.compile: Dynamo captures the rebuilt module to a graph of the same key.
"""

from fuseplan.capture.trace_calls import Calls
from fuseplan.capture.trace_format import Trace, retarget
from fuseplan.capture.trace_load import Loaded, load_trace
from fuseplan.capture.trace_write import write_trace

__all__ = ["Calls", "Loaded", "Trace", "load_trace", "retarget", "write_trace"]
