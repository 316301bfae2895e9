"""From a plan to the callable that runs in place of the program."""

from fuseplan.runtime.record import CompiledPrograms, GraphRecord, Program, RegionRecord
from fuseplan.runtime.replay import replay

__all__ = ["CompiledPrograms", "GraphRecord", "Program", "RegionRecord", "replay"]
