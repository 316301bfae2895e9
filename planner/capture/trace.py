"""A program that can be carried to another process: the Dynamo graph as JSON, and a module rebuilt from it.

A worker measures any plan with it by `torch.compile(loaded.module, backend="fuseplan", options={"plan": …})`, beside
eager and plain torch.compile: Dynamo captures the rebuilt module to a graph of the same key.
"""

from fuseplan.capture.trace_calls import Calls
from fuseplan.capture.trace_format import Trace
from fuseplan.capture.trace_key import at_home, key_of, native, retarget
from fuseplan.capture.trace_load import Loaded, load_trace
from fuseplan.capture.trace_write import write_trace

__all__ = ["Calls", "Loaded", "Trace", "at_home", "key_of", "load_trace", "native", "retarget", "write_trace"]
