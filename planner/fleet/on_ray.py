"""Devices of a Ray cluster: one actor for each, which runs the workers there. Ray Core alone, and nothing else of fuseplan imports it.

An actor ends with its driver, and its workers with the actor: a driver that is killed leaves nothing that works on. Answers that are
on their way then are lost with it; what they say was not acknowledged, and the next run asks for it again.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from time import monotonic
from typing import Any

from fuseplan import __version__
from fuseplan.errors import ExecutorError, OptionError
from fuseplan.fleet.fleet import Fleet, FleetDevice, unfit
from fuseplan.fleet.host import DeviceHost, read_facts, read_stages
from fuseplan.fleet.remote import HostLostError
from fuseplan.tuning_db.notify import notify
from fuseplan.wire.codec import CodecError

BEAT_S = 5.0
"""So often a host that is at work is asked whether it lives."""
LEASE_S = 60.0
"""One that does not answer for so long is given up, and its work is done elsewhere."""
START_S = 120.0
"""Within so many seconds an actor is there, else its device is left out: others may have it, or the machine has no fuseplan."""
CONNECT_S = 10.0
"""Within which somebody answers where a cluster is said to be."""
AT_ONCE = 64
"""Calls of one actor that may wait at the same time: each of its workers has one, and so has each look whether it lives."""
_A_LITTLE = 0.001
"""Of the resource that stands for a kind of GPU, which only says where an actor belongs."""
_KIND = "accelerator_type:"

MakeHost = Callable[..., DeviceHost]


class RayLine:
    """The way to the actor of one device."""

    def __init__(self, ray: Any, actor: Any, name: str) -> None:
        self._ray, self._actor, self._name = ray, actor, name
        self.lost: str | None = None

    def call(self, method: str, *given: Any, heard: Callable[[int, str, str], None] | None = None) -> Any:
        """What the actor answers, while it is seen to live."""
        asked = self._send(method, *given)
        while True:
            ready, _ = self._ray.wait([asked], timeout=BEAT_S)
            if ready:
                return self._got(asked)
            stages = read_stages(self._got(self._send("beat"), LEASE_S))
            if heard is not None:
                for stage in stages.values():
                    heard(stage.number, stage.at, stage.stage)

    def tell(self, method: str, *given: Any) -> None:
        """Ask for something, and wait for nothing."""
        with suppress(HostLostError):  # which whoever calls it next is told
            self._send(method, *given)

    def end(self) -> None:
        """End the actor, and with it its workers."""
        self.lost = self.lost or "it was ended"
        self._kill()

    def _kill(self) -> None:
        if self._ray.is_initialized():  # else Ray starts a cluster, for whoever asks anything of it
            with suppress(Exception):  # whatever is wrong with it, it is not there
                self._ray.kill(self._actor)

    def _send(self, method: str, *given: Any) -> Any:
        if self.lost is not None:
            raise HostLostError(f"{self._name} is lost: {self.lost}")
        try:
            return getattr(self._actor, method).remote(*given)
        except self._ray.exceptions.RayError as error:
            self._give_up(error)

    def _got(self, asked: Any, within_s: float | None = None) -> Any:
        try:
            return self._ray.get(asked, timeout=within_s)
        except self._ray.exceptions.GetTimeoutError:
            self._give_up(f"it did not answer for {LEASE_S:.0f} s")
        except self._ray.exceptions.RayError as error:
            self._give_up(error)

    def _give_up(self, why: object) -> Any:
        told = str(why).strip().splitlines()
        self.lost = (told[0] if told else type(why).__name__)[:300]
        notify(f"{self._name} is lost, and what it was at is done elsewhere: {self.lost}")
        self._kill()
        raise HostLostError(f"{self._name} is lost: {self.lost}")


@contextmanager
def on_ray(
    types: tuple[str, ...] = (),
    address: str | None = None,
    *,
    host: MakeHost = DeviceHost,
    told: Callable[[str], None] = notify,
) -> Iterator[Fleet]:
    """The devices of a cluster: of that at this address, or of one that is started here. `types` says whether GPUs or CPUs are
    wanted, else GPUs where there are any. `told` hears of each device that is left out, and why.
    """
    ray = _imported()
    was_there = ray.is_initialized()
    if not was_there:
        _answers(address)
        try:
            ray.init(address=address, log_to_driver=False, configure_logging=False)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise OptionError(f"there is no Ray cluster to be had: {str(error).splitlines()[0]}") from None
    lines: list[RayLine] = []
    try:
        devices = _ready(ray, _actors(ray, types, host), lines, told)
        if not devices:
            raise ExecutorError("no device of the cluster can work")
        yield Fleet(devices)
    finally:
        for line in lines:
            line.end()
        if not was_there:
            ray.shutdown()


def _answers(address: str | None) -> None:
    """OptionError where nobody listens: Ray itself tries for minutes."""
    host, _, port = (address or "").rpartition(":")
    if not host or "/" in host or not port.isdecimal():
        return  # such as auto, or a client's address
    try:
        socket.create_connection((host, int(port)), CONNECT_S).close()
    except OSError as error:
        raise OptionError(f"there is no Ray cluster at {address}: {error}") from None


def _imported() -> Any:
    try:
        import ray
    except ImportError:
        raise OptionError("tuning on Ray needs Ray: pip install 'fuseplan[ray]'") from None
    import_module("ray.exceptions")
    return ray


@dataclass(frozen=True)
class _Actor:
    name: str
    device: str
    line: RayLine
    asked: Any


def _actors(ray: Any, types: tuple[str, ...], host: MakeHost) -> list[_Actor]:
    """An actor for each device, none of which is ready yet."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    nodes = [node for node in ray.nodes() if node["Alive"]]
    wanted = types or (("cuda",) if any(node["Resources"].get("GPU") for node in nodes) else ("cpu",))
    names = _names(nodes)
    found = []
    for node in nodes:
        resources = node["Resources"]
        places = [(f"cuda:{i}", "cuda:0") for i in range(int(resources.get("GPU", 0)))] if "cuda" in wanted else []
        places += [("cpu", "cpu")] if "cpu" in wanted and resources.get("CPU") else []
        for number, device in places:
            name = f"{names[node['NodeID']]}/{number}"
            options: dict[str, Any] = (
                {"num_cpus": resources["CPU"]} if device == "cpu" else {"num_cpus": 0, "num_gpus": 1}
            )
            kinds = [one for one in resources if one.startswith(_KIND)] if device != "cpu" else []
            actor = (
                ray.remote(host)
                .options(
                    **options,
                    resources=dict.fromkeys(kinds, _A_LITTLE),
                    max_concurrency=AT_ONCE,
                    max_restarts=0,
                    scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False),
                )
                .remote(device)
            )
            found.append(_Actor(name, device, RayLine(ray, actor, name), actor.facts.remote()))
    return found


def _names(nodes: list[dict[str, Any]]) -> dict[str, str]:
    """What each node is called: as its machine, and by its own number where that has several."""
    hosts = [node["NodeManagerHostname"] for node in nodes]
    return {
        node["NodeID"]: host if hosts.count(host) == 1 else f"{host}-{node['NodeID'][:6]}"
        for node, host in zip(nodes, hosts, strict=True)
    }


def _ready(ray: Any, actors: list[_Actor], lines: list[RayLine], told: Callable[[str], None]) -> list[FleetDevice]:
    """Those that are there in time, and fit."""
    lines += [one.line for one in actors]
    until = monotonic() + START_S
    found = []
    for one in actors:
        try:
            facts = read_facts(ray.get(one.asked, timeout=max(0.0, until - monotonic())))
        except ray.exceptions.GetTimeoutError:
            told(f"{one.name} is left out: it was not free within {START_S:.0f} s")
            one.line.end()
            continue
        except ray.exceptions.RayError as error:
            told(f"{one.name} is left out: {str(error).strip().splitlines()[-1][:300]}")
            one.line.end()
            continue
        except CodecError:  # before it could say of which version it is
            told(f"{one.name} is left out: it has another fuseplan than this process, {__version__}")
            one.line.end()
            continue
        why = unfit(one.name, facts)
        if why is not None:
            told(why)
            one.line.end()
            continue
        found.append(FleetDevice(one.name, one.device, facts, one.line))
    return found
