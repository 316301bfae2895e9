"""What the text of a way says: a kernel, and what becomes of the mask and of what else attention is given."""

from __future__ import annotations

from dataclasses import dataclass

from fuseplan.plan import MASK_ENDINGS


@dataclass(frozen=True)
class AttentionWay:
    """A way to run attention.

    >>> AttentionWay.parse("flash+causal+grouped")
    AttentionWay(kernel='flash', mask='causal', grouped=True, packed=False, views=False)
    """

    kernel: str
    mask: str = ""
    """`causal`, `unmasked`, `window` and `documents` drop it, `rows`, `aligned` and `heads` lay it out; otherwise it stays as it is."""
    grouped: bool = False
    """Keys and values are those that the program repeats for each head of a group."""
    packed: bool = False
    """Likewise, and the heads of a group are rows of one query."""
    views: bool = False
    """Query, key and value are what they were before a copy that only laid them out."""

    @staticmethod
    def parse(text: str) -> AttentionWay:
        """The way that one of the texts of `ATTENTION_WAYS` stands for."""
        kernel, *endings = text.split("+")
        masks = [one for one in endings if one in MASK_ENDINGS]
        return AttentionWay(
            kernel, masks[0] if masks else "", "grouped" in endings, "packed" in endings, "views" in endings
        )

    @property
    def drops_mask(self) -> bool:
        """Whether attention is given no mask."""
        return self.mask in ("causal", "unmasked", "window", "documents")

    @property
    def lays_out(self) -> bool:
        """Whether the mask is laid out anew."""
        return self.mask in ("rows", "aligned", "heads")
