"""Tables for the comparison of searches: captured from a model, and out of a tuned database."""

from __future__ import annotations

from pathlib import Path

import torch

from benchmarks.search_tables import captured, from_database
from fuseplan.segment import extract
from fuseplan.tuning_db import Environment, Measurement, Places, Store

GPU = "NVIDIA H200"
HERE = Environment("cuda", "2.11.0", gpu=GPU, gpu_sms=132, gpu_l2_mib=60, gpu_memory_gib=140)


class Model(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x.exp() + 1).view(8, 8) * 2


def test_a_program_is_captured_as_a_gpu_would_see_it() -> None:
    table = captured("small", Model(), {"x": torch.ones(64)}, train=False)
    (graph,) = table.graphs.values()
    assert graph.devices == ("cuda:0",)
    assert table.takes == {"inference": {"inductor": (True,) * 4, "nvfuser": (True,) * 4}}
    assert table.times == ()


def test_a_tuned_database_gives_its_programs_and_times(tmp_path: Path) -> None:
    graph = captured("small", Model(), {"x": torch.ones(64)}, train=False).graphs["inference"]
    region = extract(graph, (0, 1))
    store = Store(Places(tmp_path / "tuned.db"))
    store.add_program("a" * 64, "small", {"inference": graph})
    store.add_program("b" * 64)
    store.add_measurements(
        region,
        [
            Measurement(region.key, HERE, "inductor", device_us=3.0, host_us=10.0),
            Measurement(region.key, HERE, "inductor", device_us=5.0, host_us=12.0),
            Measurement(region.key, HERE, "nvfuser", status="timeout"),
        ],
    )
    store.close()
    (table,) = from_database(tmp_path / "tuned.db")
    assert (table.name, table.gpu, table.source) == ("small", GPU, f"measured on {GPU}")
    assert table.graphs == {"inference": graph}
    assert table.times == ((region, "inductor", "default", 4.0, 11.0),)
