"""The catalogue of all faults, by name."""

from __future__ import annotations

from benchmarks.judging.arithmetic_faults import arithmetic_faults
from benchmarks.judging.data_faults import data_faults
from benchmarks.judging.planting import Fault
from benchmarks.judging.run_faults import run_faults

_ALL: tuple[Fault, ...] = (*arithmetic_faults(), *data_faults(), *run_faults())
FAULTS: dict[str, Fault] = {fault.name: fault for fault in _ALL}
