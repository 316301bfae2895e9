"""Cost models: what a region costs on the device and on the host, under each executor. Imports no torch."""

from fuseplan.models.baselines import BestSingleExecutor, Random
from fuseplan.models.cost import Cost
from fuseplan.models.machine import Machine
from fuseplan.models.model import CostModel, Question, Row
from fuseplan.models.roofline import Roofline
from fuseplan.models.table import WorkTable, work_of
from fuseplan.models.work import AnchorWork, Work

__all__ = [
    "AnchorWork",
    "BestSingleExecutor",
    "Cost",
    "CostModel",
    "Machine",
    "Question",
    "Random",
    "Roofline",
    "Row",
    "Work",
    "WorkTable",
    "work_of",
]
