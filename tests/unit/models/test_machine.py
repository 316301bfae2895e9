"""Machines by name, their calibration, and dynamic sizes."""

from __future__ import annotations

import pytest

from fuseplan.errors import OptionError
from fuseplan.graph import Symbol
from fuseplan.models import Machine
from fuseplan.models.sizes import SizeValues


@pytest.mark.parametrize(
    ("name", "device"),
    [
        ("NVIDIA H200", "cuda"),
        ("NVIDIA A10G", "cuda"),
        ("NVIDIA GeForce GTX 1080", "cuda"),
        ("AMD Instinct MI300X", "cuda"),
        ("Intel(R) Xeon(R) Processor", "cpu"),
        ("AMD EPYC", "cpu"),
        ("", "cpu"),
    ],
)
def test_every_name_is_a_machine(name: str, device: str) -> None:
    machine = Machine.guess(name)
    assert (machine.name, machine.device) == (name, device)
    assert machine.matmul_rate("bfloat16") > 0
    assert machine.matmul_rate("a dtype of next year") > 0


def test_longer_names_are_other_products() -> None:
    assert Machine.guess("NVIDIA A100").bandwidth_gbs > 2 * Machine.guess("NVIDIA A10").bandwidth_gbs
    assert Machine.guess("NVIDIA RTX A1000").bandwidth_gbs == Machine.guess("NVIDIA GTX 1080").bandwidth_gbs


def test_calibrated_rates_replace_guessed_ones_and_no_others() -> None:
    guess = Machine.guess("NVIDIA H200")
    machine = guess.calibrated({"bandwidth_gbs": 4000.0, "matmul_tflops.bfloat16": 700.0, "launch_device_us": 1.5})
    assert (machine.bandwidth_gbs, machine.launch_device_us, machine.matmul_rate("bfloat16")) == (4000.0, 1.5, 700.0)
    assert machine.matmul_rate("float32") == guess.matmul_rate("float32")


@pytest.mark.parametrize(
    "measured", [{"bandwith": 1.0}, {"name": 1.0}, {"bandwidth_gbs": 0.0}, {"launch_host_us": float("nan")}]
)
def test_a_rate_that_makes_no_sense_is_refused(measured: dict[str, float]) -> None:
    with pytest.raises(OptionError, match=next(iter(measured))):
        Machine.guess("NVIDIA H200").calibrated(measured)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("s0", 8),
        ("2*s0 + s1", 21),
        ("(s0 + 3)//2", 5),
        ("CeilDiv(s1, 2)", 3),
        ("Max(1, s0 - s1)", 3),
        ("-s0", 0),
        ("s1**2", 25),
        ("s0//0", 8),
        ("OpaqueUnaryFn_sqrt(s0)", 8),
        ("s0**s0**s0**s0", 8),
        ("(" * 5000, 16),
    ],
)
def test_a_size_is_computed_or_else_guessed_but_never_fails(text: str, value: int) -> None:
    sizes = SizeValues([Symbol("s0", 0, None, 8), Symbol("s1", 0, None, 5)])
    assert sizes(text) == value
