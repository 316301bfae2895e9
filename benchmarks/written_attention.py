"""How much of the attention that models write out is found: small models of transformers and timm, attention written out.

Counted apart from the finder, in the ATen graphs of the models: softmaxes that come from a product of two tensors as large as
themselves, and go into one. timm is measured where it is installed; it is no dependency.
"""

from __future__ import annotations

import importlib.util
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd
from torch.fx import GraphModule, Node
from torch.utils._pytree import tree_leaves

from benchmarks.given import names
from benchmarks.judging.more_models import MORE
from benchmarks.small_zoo import TRANSFORMERS, Entry, Hf
from fuseplan.rewrites.written.site import find_written

_PRODUCTS = ("aten.bmm", "aten.baddbmm")
"""Of two tensors of data, batch by batch; linear layers are another op."""
_SOFTMAXES = ("aten._softmax", "aten._safe_softmax")
_TIMM: dict[str, dict[str, Any]] = {
    "vit_tiny_patch16_224": {"depth": 2, "img_size": 64},
    "deit3_small_patch16_224": {"depth": 2, "img_size": 64},
    "beit_base_patch16_224": {"depth": 2, "img_size": 64},
    "beitv2_base_patch16_224": {"depth": 2, "img_size": 64},
    "eva02_tiny_patch14_224": {"depth": 2, "img_size": 56},
    "cait_xxs24_224": {"depth": 2, "img_size": 64},
    "swin_tiny_patch4_window7_224": {"img_size": 112, "depths": (2, 2), "num_heads": (3, 6)},
    "swinv2_tiny_window8_256": {"img_size": 128, "depths": (2, 2), "num_heads": (3, 6)},
    "swinv2_cr_tiny_ns_224": {"img_size": 112, "depths": (2, 2), "num_heads": (3, 6)},
    "xcit_nano_12_p16_224": {"depth": 2, "img_size": 64},
    "maxvit_pico_rw_256": {"img_size": 64},
    "coatnet_pico_rw_224": {"img_size": 64},
    "levit_128s": {"img_size": 64},
    "mvitv2_tiny": {"img_size": 64},
    "pvt_v2_b0": {},
    "twins_pcpvt_small": {"img_size": 64},
    "twins_svt_small": {"img_size": 64},
    "coat_lite_tiny": {"img_size": 64},
    "crossvit_tiny_240": {},
    "visformer_tiny": {"img_size": 64},
    "nest_tiny": {"img_size": 64},
    "efficientformer_l1": {},
    "efficientformerv2_s0": {},
    "mobilevit_xxs": {},
    "mobilevitv2_050": {},
    "convit_tiny": {"img_size": 64},
    "gcvit_xxtiny": {"img_size": 224},
    "davit_tiny": {},
    "hiera_tiny_224": {},
    "tiny_vit_5m_224": {},
    "volo_d1_224": {"img_size": 64},
    "nextvit_small": {},
    "fastvit_t8": {},
    "mobilenetv4_hybrid_medium": {},
    "halonet26t": {},
    "botnet26t_256": {},
    "lambda_resnet26t": {},
    "tnt_s_legacy_patch16_224": {},
    "pit_ti_224": {},
    "sequencer2d_s": {},
    "samvit_base_patch16_224": {"depth": 2, "img_size": 64, "global_attn_indexes": (1,)},
    "repvit_m0_9": {},
    "vit_relpos_small_patch16_224": {"depth": 2, "img_size": 64},
    "vit_srelpos_small_patch16_224": {"depth": 2, "img_size": 64},
    "flexivit_small": {"depth": 2},
    "vitamin_small_224": {},
}
"""Names of timm, and what makes them small."""
_DISENTANGLED = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 8}
"""Of DeBERTa as its models are published, with scores of what is where."""


def measure(arguments: list[str]) -> dict[str, Any]:
    """All models, or those that are named."""
    builders = dict(_all())
    result = {}
    for name in names("written_attention", __doc__, arguments, tuple(builders)):
        result[name] = _measured(builders[name])
        print(name, result[name], file=sys.stderr, flush=True)
    return result


def _all() -> Iterator[tuple[str, Callable[[], tuple[nn.Module, dict[str, Any]]]]]:
    by_places = {"deberta_v2 by places": _with(MORE["deberta_v2"], **_DISENTANGLED)}
    for name, entry in {**TRANSFORMERS, **MORE, **by_places}.items():
        yield f"transformers {name}", _with(entry, attn_implementation="eager").build
    if importlib.util.find_spec("timm") is not None:
        for name, sizes in _TIMM.items():
            yield f"timm {name}", lambda name=name, sizes=sizes: _of_timm(name, sizes)  # type: ignore[misc]


def _with(entry: Entry, **extra: Any) -> Entry:
    """The same with more in its configuration, such as attention written out."""
    assert isinstance(entry.model, Hf)
    return replace(entry, model=replace(entry.model, extra={**entry.model.extra, **extra}))


def _of_timm(name: str, sizes: dict[str, Any]) -> tuple[nn.Module, dict[str, Any]]:
    timm = importlib.import_module("timm")
    importlib.import_module("timm.layers").set_fused_attn(False)
    torch.manual_seed(0)
    model: nn.Module = timm.create_model(name, num_classes=10, **sizes)
    given: Any = model.pretrained_cfg
    size: int = sizes.get("img_size") or given["input_size"][-1]
    return model, {"x": torch.randn(2, 3, size, size)}


def _measured(build: Callable[[], tuple[nn.Module, dict[str, Any]]]) -> dict[str, Any]:
    """How much attention one model computes, how much of it is found, and why the rest is not; and in how much of it a fused kernel
    gives the gradients of what is written.
    """
    found = Counter[str]()
    missed: list[str] = []

    def backend(gm: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        sites, misses = find_written(gm)
        found["found"] += len(sites)
        found["proven"] += sum(site.proof.verdict is not None for site in sites)
        found["fused here"] += sum(site.refusal("flash") is None for site in sites)
        missed.extend(miss.reason for miss in misses)

        def count(graph: GraphModule, _: Sequence[Any]) -> Callable[..., Any]:
            found["attention"] += sum(map(_is_attention, graph.graph.nodes))
            return graph.forward

        compiled: Callable[..., Any] = aot_autograd(fw_compiler=count)(gm, inputs)
        return compiled

    def training(gm: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        found["in training"] += sum(not site.written.loses_rows for site in find_written(gm)[0])
        eager: Callable[..., Any] = gm.forward
        return eager

    try:
        model, inputs = build()
        for one, mode in ((backend, torch.no_grad), (training, torch.enable_grad)):
            torch._dynamo.reset()
            with mode():
                torch.compile(model.eval(), backend=one)(**inputs)
    except (RuntimeError, TypeError, ValueError, AttributeError, KeyError) as error:  # a row that says so
        return {"failed": f"{type(error).__name__}: {str(error)[:160]}"}
    unfound = found["attention"] - found["found"]
    row = {key: found[key] for key in ("attention", "found", "proven", "fused here", "in training")}
    return {**row, "missed": dict(Counter(missed).most_common()) if unfound else {}}


# counted apart from the finder


def _is_attention(node: Node) -> bool:
    """A softmax whose input comes from a product as large as it is, and whose result goes into one."""
    if not str(node.target).startswith(_SOFTMAXES):
        return False
    size = node.meta["val"].numel()
    return _reaches(node, lambda each: each.all_input_nodes, size, into=False) and _reaches(
        node, lambda each: list(each.users), size, into=True
    )


def _reaches(start: Node, following: Callable[[Node], list[Node]], size: int, into: bool) -> bool:
    """Whether a product lies this way, past ops that are as large as the softmax."""
    waiting, seen = list(following(start)), {start}
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        if str(node.target).startswith(_PRODUCTS):
            if into or _size(node) == size:
                return True
        elif node.op == "call_function" and _size(node) == size and not str(node.target).startswith(_SOFTMAXES):
            waiting += following(node)
    return False


def _size(node: Node) -> int:
    return max((each.numel() for each in tree_leaves(node.meta.get("val")) if isinstance(each, Tensor)), default=0)
