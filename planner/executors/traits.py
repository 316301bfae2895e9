"""Traits: what an executor says of itself to those who plan, predict and draw, without torch."""

from __future__ import annotations

from dataclasses import dataclass

Color = tuple[str, str]
"""On a light ground and on a dark one: enough contrast for text on either."""


@dataclass(frozen=True)
class Traits:
    """What sets an executor apart. The defaults are what is believed of one that nothing is known of.

    >>> Traits("toy").seconds_for("default"), Traits("toy").seconds_for("tuned")
    (2.0, 10.0)
    """

    name: str
    executor: str = ""
    """Where the class of one from outside is, as `module:Class`: workers import it by that."""
    title: str = ""
    """What people call it."""
    devices: tuple[str, ...] = ()
    """The types of device on which it is worth asking; none: on all."""
    fuses: bool = True
    """Whether it makes one kernel of several ops, or else runs a region op by op."""
    joins_anchors: bool = False
    """Whether regions that hold anchors are put to it: what it has no kernel of its own for, it calls."""
    greedy_rank: int = 1
    """Among those that fuse, the first by this number makes the cut that the moves of a plan start from."""
    greedy_default: bool = False
    """Whether the plan that fuses all it takes is a default, which every tuned plan has to beat."""
    with_torch: bool = False
    """Whether it comes with torch: who is told torch's version needs none of its own to tell two places apart."""
    searching: tuple[str, ...] = ("tuned",)
    """Variants that search for kernels by themselves: for those who have time."""
    measuring_s: float = 2.0
    """What compiling, checking and timing a region takes, about; only how executors compare counts."""
    searching_s: float = 10.0
    """The same for a variant that searches by itself."""
    color: Color | None = None
    """Of its regions in drawings and on pages; without one, one of `OTHER_COLORS`."""
    call_units: float = 1.1
    """What calling a region costs the host, in units of what one op costs PyTorch there (`scripts/bench regions`), …"""
    kernel_units: float = 0.2
    """… and what each kernel of it adds."""
    pads_matmuls: bool = False
    """Whether it pads a matmul of sizes that tensor cores cannot read whole."""
    turns_images: bool = False
    """Whether it turns images around for a convolution that is a product of matrices as they lie."""
    kin_spread: float = 0.1
    """By how much regions that differ in their views alone differ in time, so that nine of ten lie within (`scripts/bench kin`)."""

    def seconds_for(self, variant: str) -> float:
        """The seconds that measuring a variant takes, about."""
        return self.searching_s if variant in self.searching else self.measuring_s

    def runs_on(self, device: str) -> bool:
        """Whether it is worth asking on this type of device."""
        return not self.devices or device in self.devices
