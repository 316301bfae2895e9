"""All devices of a fleet: of what kinds they are, and who works on each. How they are reached is somebody else's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import torch

from fuseplan import __version__
from fuseplan.capture.dynamo.numerics import Numerics
from fuseplan.errors import OptionError
from fuseplan.fleet.host import HostFacts
from fuseplan.fleet.remote import HostLine, HostLostError, RemoteProcess
from fuseplan.measure.environment import Flags, RunFacts
from fuseplan.measure.jobs import Setup
from fuseplan.measure.pool import Workers
from fuseplan.tuning.effort import Effort
from fuseplan.tuning.program.services import Pool
from fuseplan.tuning.queue.devices import DeviceKind, vetters_for
from fuseplan.tuning_db import Environment


@dataclass(frozen=True)
class FleetDevice:
    """One device, and the line to its host."""

    name: str
    """What people call it, and no other device: its machine's name and its own there."""
    device: str
    """What it is called there."""
    facts: HostFacts
    line: HostLine


def unfit(name: str, facts: HostFacts) -> str | None:
    """Why a device cannot work for this driver; None where it can."""
    if facts.busy is not None:
        return f"{name} is left out: others use it ({facts.busy})"
    for what, there, here in (
        ("fuseplan", facts.fuseplan, __version__),
        ("torch", facts.torch.partition("+")[0], str(torch.__version__).partition("+")[0]),
    ):
        if there != here:
            return f"{name} is left out: it has {what} {there}, and this process {here}"
    return None


class Fleet:
    """Devices that take work from one driver."""

    def __init__(self, devices: Sequence[FleetDevice]) -> None:
        if not devices:
            raise OptionError("no device of the cluster can work")
        self.devices = {one.name: one for one in devices}

    def kinds(self) -> list[DeviceKind]:
        """The devices, those together that are alike, as they are under the numerics of this process."""
        numerics = Numerics.here()
        switches: dict[str, Any] = {
            name: int(it) if isinstance(it, bool) else it for name, it in vars(numerics).items()
        }
        alike: dict[tuple[Environment, str], list[str]] = {}
        for one in self.devices.values():
            here = replace(one.facts.environment, **switches)
            alike.setdefault((here, one.device), []).append(one.name)
        return [DeviceKind(here, tuple(names), numerics, device) for (here, device), names in alike.items()]

    def facts(self, where: str) -> RunFacts:
        """What is written down beside a run on a device."""
        return self.devices[where].facts.run

    @contextmanager
    def workers(self, where: str, effort: Effort) -> Iterator[Pool]:
        """The workers of a device, which start there now."""
        one = self.devices[where]
        numbers = iter(range(1000))

        def process(setup: Setup, start_s: float) -> RemoteProcess:
            return RemoteProcess(one.line, next(numbers), setup, start_s)

        flags = vars(replace(Flags.here(), threads=one.facts.threads))
        vetters = vetters_for(one.device, effort)
        pool = Workers(one.device, vetters=vetters, flags=flags, process=process, cores_there=one.facts.cores)
        with pool as workers:
            workers.start(racing=effort.measures and effort.cuts)
            yield workers
        with suppress(HostLostError):  # with all its workers
            one.line.call("end")
