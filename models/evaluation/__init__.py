"""How good cost models are, on measured rows: what each word of the report means is said where it is computed."""

from fuseplan.models.evaluation.data import Data
from fuseplan.models.evaluation.evaluate import Report, evaluate

__all__ = ["Data", "Report", "evaluate"]
