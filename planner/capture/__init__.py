"""From what PyTorch gives (Dynamo's graph, AOTAutograd's graphs) to the Graph, and back to FX."""

from fuseplan.capture.from_fx import Captured, capture_fx, from_fx
from fuseplan.capture.to_fx import fake_inputs, to_fx

__all__ = ["Captured", "capture_fx", "fake_inputs", "from_fx", "to_fx"]
