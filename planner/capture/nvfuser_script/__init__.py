"""nvFuser's scripts as programs of PyTorch: a `FusionDefinition` of today or of the old frontend, parsed and never run."""

from fuseplan.capture.nvfuser_script.read import read_script, read_scripts

__all__ = ["read_script", "read_scripts"]
