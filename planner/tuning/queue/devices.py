"""Where a run of tuning works: devices that are alike share what is measured, and each has a pool of workers of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from threading import Lock
from typing import Protocol, TypeVar

from fuseplan.capture.dynamo.numerics import Numerics
from fuseplan.errors import FuseplanError, OptionError
from fuseplan.measure.environment import RunFacts, environment
from fuseplan.measure.jobs import Job, Outcome, VetPlan
from fuseplan.measure.pool import OnStage, Workers
from fuseplan.measure.vetters import Ask
from fuseplan.tuning.effort import Effort
from fuseplan.tuning.program.services import Pool
from fuseplan.tuning.traces import check_device
from fuseplan.tuning_db import Environment

Answer = TypeVar("Answer")
VETTERS, WHOLE_VETTERS = 4, 3
"""Workers that compile and check at once on a GPU's host; a CPU machine has its cores for one. The latter where whole programs alone
race: there are no more at a time, and each that starts takes cores from the others."""


class Elsewhere(Protocol):
    """Devices of other machines."""

    def kinds(self) -> list[DeviceKind]:
        """What they are, under the numerics of this process."""
        ...

    def facts(self, where: str) -> RunFacts:
        """What is written down beside a run on one of them."""
        ...

    def workers(self, where: str, effort: Effort) -> AbstractContextManager[Pool]:
        """The workers of one of them."""
        ...


OpenPool = Callable[[str, Effort], AbstractContextManager[Pool]]
"""From a device and an effort to the workers that measure there."""


@dataclass(frozen=True)
class DeviceKind:
    """Devices that are alike: what is measured on one of them holds for all."""

    environment: Environment
    devices: tuple[str, ...]
    numerics: Numerics
    """Under these, as the environment says too."""
    target: str = ""
    """What the device is called where it is, on a machine of its own."""

    @property
    def there(self) -> str:
        """The device that programs are for."""
        return self.target or self.devices[0]

    @property
    def on_cpu(self) -> bool:
        """Whether it measures with the very cores that compile for others: then nobody works beside it."""
        return self.environment.device == "cpu"


def named(text: str) -> tuple[str, ...]:
    """The devices of a list such as `cuda:0,cuda:1`, each once; OptionError where one of them is not here.

    >>> named("cpu")
    ('cpu',)
    """
    found: dict[tuple[str, int], str] = {}
    for name in (part.strip() for part in text.split(",")):
        check_device(name)
        kind, _, index = name.partition(":")
        place = (kind, int(index or 0))
        if place in found:
            raise OptionError(f"{name} is named twice in {text!r}")
        found[place] = name
    return tuple(found.values())


def types_in(text: str) -> tuple[str, ...]:
    """The types of a list such as `cpu,cuda`; of devices elsewhere no single one is named.

    >>> types_in("cuda")
    ('cuda',)
    """
    found = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    if not set(found) <= {"cpu", "cuda"}:
        raise OptionError(f"of devices of a cluster the type is named, cpu or cuda, not {text!r}")
    return found


def kinds(devices: Sequence[str]) -> list[DeviceKind]:
    """The devices, those together that are alike.

    >>> [kind.devices for kind in kinds(["cpu"])]
    [('cpu',)]
    """
    alike: dict[Environment, list[str]] = {}
    for device in devices:
        alike.setdefault(environment(device), []).append(device)
    return [DeviceKind(here, tuple(found), Numerics.here()) for here, found in alike.items()]


def shifts(kinds: Iterable[DeviceKind]) -> list[list[DeviceKind]]:
    """Those that work at the same time: GPUs under the same numerics. A CPU takes its turn alone."""
    together: dict[object, list[DeviceKind]] = {}
    for kind in kinds:
        together.setdefault((kind.on_cpu and kind, kind.numerics), []).append(kind)
    return sorted(together.values(), key=lambda shift: shift[0].on_cpu)


@contextmanager
def own_workers(device: str, effort: Effort, on_stage: OnStage | None = None) -> Iterator[Pool]:
    """Worker processes of this machine, which start here and now; `on_stage` hears what they are at."""
    with workers_for(device, effort, on_stage) as workers:
        workers.start(racing=effort.measures and effort.cuts)
        yield workers


def workers_for(device: str, effort: Effort, on_stage: OnStage | None = None) -> Workers:
    """The workers of one device that an effort needs, none of which is started yet."""
    return Workers(device, vetters=vetters_for(device, effort), on_stage=on_stage)


def vetters_for(device: str, effort: Effort) -> int:
    """How many workers check at once."""
    several = VETTERS if effort.cuts else WHOLE_VETTERS
    return several if device.startswith("cuda") and effort.measures else 1


class StoppedError(Exception):
    """The run was ended from outside: whatever is still said of its jobs does not count."""


class LazyPool:
    """The workers of one device, which start when the first job comes: what is known needs none."""

    def __init__(self, opening: Callable[[], AbstractContextManager[Pool]]) -> None:
        self._opening = opening
        self._stack, self._lock = ExitStack(), Lock()
        self._pool: Pool | None = None
        self._closed = False

    def begin(self, job: VetPlan) -> None:
        """As any pool; StoppedError after `close`."""
        self._carried_out(lambda pool: pool.begin(job))

    def map(
        self,
        jobs: Sequence[Job],
        on_done: Callable[[Job, Outcome], None] | None = None,
        limit_s: float | None = None,
    ) -> list[Outcome]:
        """As any pool; StoppedError after `close`."""
        return self._carried_out(lambda pool: pool.map(jobs, self._hearing(on_done), limit_s))

    def stream(
        self,
        ask: Ask,
        on_done: Callable[[Job, Outcome], None] | None = None,
    ) -> list[Outcome]:
        """As any pool; StoppedError after `close`."""
        return self._carried_out(lambda pool: pool.stream(ask, self._hearing(on_done)))

    def _hearing(self, on_done: Callable[[Job, Outcome], None] | None) -> Callable[[Job, Outcome], None]:
        def heard(job: Job, outcome: Outcome) -> None:
            self._check()  # that a worker was ended says nothing of the job it was at
            if on_done is not None:
                on_done(job, outcome)

        return heard

    def _carried_out(self, work: Callable[[Pool], Answer]) -> Answer:
        try:
            found = work(self._opened())
        except FuseplanError:
            self._check()  # nor does what a worker says that was ended while it started
            raise
        self._check()
        return found

    def start(self) -> None:
        """Open it before the first job: its workers start meanwhile."""
        self._opened()

    def _opened(self) -> Pool:
        with self._lock:
            self._check()
            if self._pool is None:
                self._pool = self._stack.enter_context(self._opening())
            return self._pool

    def close(self) -> None:
        """End the workers now, from whichever thread."""
        self._closed = True
        with self._lock:
            self._stack.close()

    def break_off(self, error: BaseException) -> None:
        """End the workers now, as whoever opened them does after an error."""
        self._closed = True
        with self._lock, suppress(type(error)):
            self._stack.__exit__(type(error), error, error.__traceback__)

    def _check(self) -> None:
        if self._closed:
            raise StoppedError
