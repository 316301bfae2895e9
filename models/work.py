"""How much work a region is, whoever runs it: the facts of its Graph that cost models predict times from."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, order=True)
class AnchorWork:
    """One anchor of a region: a kernel of its own, which a library brings."""

    kind: str
    """matmul, unaligned (a matmul whose rows are no multiple of 16 bytes), convolution, turned (one whose channels do not
    lie last), projection (such a one that is a matmul), attention, masked, other."""
    dtype: str
    flops: int
    bytes: int
    """What it reads and writes."""


CLASSES = (
    "pointwise", "special", "cast", "softmax", "norm", "norm_backward", "reduction", "moments", "move", "join", "gather", "random",
    "library",
)  # fmt: skip
"""The classes of ops that are counted."""


@dataclass(frozen=True, slots=True)
class RegionTraits:
    """Shapes and structure of a region; a region of views alone has next to none."""

    classes: tuple[int, ...] = (0,) * len(CLASSES)
    """How many ops there are of each of CLASSES."""
    largest: int = 0
    """Elements of the largest tensor that an op computes with."""
    inner: int = 0
    """The innermost size of that tensor."""
    item: int = 0
    """Bytes of one of its elements."""
    touched: int = 0
    """Bytes of all operands and results, each time they are used: what the shares below are shares of."""
    broadcast: int = 0
    """Those of operands that are smaller than the result and repeated."""
    aligned: int = 0
    """Those whose rows lie at multiples of a vector load."""
    strided: int = 0
    """Those that do not lie row after row without gaps."""
    wide: int = 0
    """Those of elements of four bytes and more."""
    sum_length: int = 0
    """The most elements that one sum adds up."""
    sums: int = 0
    """How many sums there are, where they are the fewest."""
    inner_sums: int = 0
    """Ops that sum along memory."""
    outer_sums: int = 0
    """Ops that sum across it."""
    axes: int = 0
    """Distinct shapes of reductions: what cannot share one loop."""
    depth: int = 0
    """Ops on the longest chain."""
    width: int = 0
    """The most ops at equal distance from the inputs."""
    live: int = 0
    """The most values made here that are alive at once."""
    head_views: int = 0
    """Views that look at what comes in."""
    tail_views: int = 0
    """Views that nothing in here computes with."""
    escaping: int = 0
    """Values that others need and that ops in here read too."""


@dataclass(frozen=True, slots=True)
class Work:
    """What has to be done, counted once for a region that is fused and, where that differs, for its ops one by one."""

    ops: int = 0
    """Ops that compute or move something; views and scalars are not among them."""
    views: int = 0
    inputs: int = 0
    """Tensors that come from outside."""
    outputs: int = 0
    """Tensors that others need."""
    bytes_in: int = 0
    """Read from outside, each once; of a slice or a gather only what is touched."""
    bytes_out: int = 0
    """Written for others, or to memory that existed before."""
    bytes_between: int = 0
    """What the kernels of the fused region would hand to one another through memory, by our guess of its kernels."""
    bytes_alone: int = 0
    """Read and written by the ops one by one."""
    scattered: int = 0
    """Those bytes of the fused region whose neighbours are written far apart."""
    scattered_alone: int = 0
    """What the ops one by one read in any other order than they write."""
    kernels: int = 0
    """How many kernels the fused region would become, by our guess: one, and more where reductions do not fit together."""
    kernels_alone: int = 0
    """How many kernels the ops are one by one."""
    pointwise: int = 0
    """Elements computed by cheap arithmetic."""
    special: int = 0
    """Elements computed by exponentials, logarithms, error functions, random numbers."""
    reduced: int = 0
    """Elements that go into sums, maxima and the like."""
    anchors: tuple[AnchorWork, ...] = ()
    """Matmuls, convolutions, attention and what we cannot look into, sorted; what they move is in the bytes above too."""
    traits: RegionTraits = RegionTraits()
    """Its shapes and its structure: what learned models look at beside the amounts."""

    @property
    def bytes_moved(self) -> int:
        """All bytes that the fused region moves."""
        return self.bytes_in + self.bytes_out + self.bytes_between

    @property
    def bytes_saved(self) -> int:
        """What fusing saves against the ops one by one.

        >>> Work(bytes_in=4, bytes_out=4, bytes_alone=16).bytes_saved
        8
        """
        return self.bytes_alone - self.bytes_moved

    @property
    def flops(self) -> int:
        """Arithmetic of the anchors together."""
        return sum(anchor.flops for anchor in self.anchors)

    @property
    def kin(self) -> Work:
        """What all regions share that differ from this one in their views alone, or in operators of one class. What a model
        is off by on one of them it is off by on the others: `scripts/bench kin` says how nearly.

        >>> Work(ops=2, views=3, traits=RegionTraits(head_views=2)).kin == Work(ops=2, views=1).kin
        True
        """
        return replace(self, views=0, traits=replace(self.traits, head_views=0, tail_views=0))
