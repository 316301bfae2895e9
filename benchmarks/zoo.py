"""The models that benchmarks run: unmodified architectures at the sizes that people use, with random weights."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.written_models import Classified, SmallGpt

Inputs = dict[str, Tensor]
LABELS = {i: str(i) for i in range(1000)}


@dataclass(frozen=True)
class Case:
    """One model at one size, for inference or for training."""

    build: Callable[[], nn.Module]
    inputs: Callable[[str], Inputs]
    train: bool = False
    weight: int = 1
    """How long it takes beside the others, roughly: of several at a time, the longest begin."""

    def load(self, device: str = "cuda", dtype: torch.dtype = torch.bfloat16) -> tuple[nn.Module, Inputs]:
        """The model and one batch, from fixed seeds."""
        torch.manual_seed(0)
        model = self.build().to(device, dtype).train(self.train)
        inputs = {name: t.to(dtype) if t.is_floating_point() else t for name, t in self.inputs(device).items()}
        return model, inputs


def step_of(call: Callable[..., Any], model: nn.Module, inputs: Inputs, train: bool) -> Callable[[], Any]:
    """One forward without gradients, or one forward and backward."""

    def infer() -> Any:
        with torch.no_grad():
            return call(**inputs)

    def step() -> Any:
        model.zero_grad(set_to_none=True)
        loss = call(**inputs).loss
        loss.backward()
        return loss

    return step if train else infer


def load(case: Case, device: str) -> tuple[nn.Module, Inputs]:
    """The model; a CPU is given float32, which it is made for."""
    return case.load(device, torch.bfloat16 if device.startswith("cuda") else torch.float32)


def fresh(model: nn.Module) -> Callable[..., Any]:
    """A function of its own that calls the model, for which Dynamo compiles anew.

    It has this module's globals: those without a name are named by where they lie, which is in the key of torch's caches.
    """

    def call(**inputs: Any) -> Any:
        return model(**inputs)

    return FunctionType(call.__code__.replace(), globals(), call.__name__, None, call.__closure__)


def built(model: str, config: str, **given: Any) -> nn.Module:
    """A model of transformers, by the names of its class and of its configuration's, with random weights."""
    import transformers

    found: nn.Module = getattr(transformers, model)(getattr(transformers, config)(**given))
    return found


_STILL = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
bert = partial(built, "BertModel", "BertConfig", **_STILL)
gpt2 = partial(built, "GPT2LMHeadModel", "GPT2Config", resid_pdrop=0.0, attn_pdrop=0.0, embd_pdrop=0.0, use_cache=False)
llama = partial(
    built, "LlamaForCausalLM", "LlamaConfig", hidden_size=1024, intermediate_size=2816, num_hidden_layers=8,
    num_attention_heads=16, num_key_value_heads=16, vocab_size=32000, use_cache=False,
)  # fmt: skip
qwen2 = partial(
    built, "Qwen2ForCausalLM", "Qwen2Config", hidden_size=896, num_hidden_layers=12, num_attention_heads=14,
    num_key_value_heads=2, intermediate_size=4864, vocab_size=151936, use_cache=False,
)  # fmt: skip
_t5_small = partial(
    built, "T5ForConditionalGeneration", "T5Config", d_model=512, d_kv=64, d_ff=2048, num_layers=6, num_heads=8,
    vocab_size=32128, decoder_start_token_id=0, dropout_rate=0.0, use_cache=False,
)  # fmt: skip
_gpt_oss = partial(
    built, "GptOssForCausalLM", "GptOssConfig", hidden_size=1024, intermediate_size=1024, num_hidden_layers=6,
    num_attention_heads=16, num_key_value_heads=4, head_dim=64, num_local_experts=8, num_experts_per_tok=2,
    vocab_size=32000, sliding_window=128, use_cache=False, pad_token_id=0, bos_token_id=1, eos_token_id=2,
)  # fmt: skip
_bert_with_head = partial(built, "BertForMaskedLM", "BertConfig", **_STILL)
_resnet = partial(built, "ResNetForImageClassification", "ResNetConfig", id2label=LABELS)
_vit = partial(built, "ViTForImageClassification", "ViTConfig", id2label=LABELS, **_STILL)
_tiny_bert = partial(
    bert, hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=128, vocab_size=100
)
_tiny_gpt2 = partial(gpt2, n_embd=64, n_layer=1, n_head=2, vocab_size=100, n_positions=32)


def _timm(name: str, train: bool = False) -> nn.Module:
    import timm

    found: nn.Module = timm.create_model(name, pretrained=False)
    return Classified(found) if train else found


def _tokens(
    batch: int, length: int, vocabulary: int, mask: bool = False, labels: bool = False
) -> Callable[..., Inputs]:
    def make(device: str) -> Inputs:
        ids = torch.randint(0, vocabulary, (batch, length), device=device)
        return {
            "input_ids": ids,
            **({"attention_mask": torch.ones_like(ids)} if mask else {}),
            **({"labels": ids} if labels else {}),
        }

    return make


def _two_texts(batch: int, read: int, written: int, vocabulary: int) -> Callable[..., Inputs]:
    """What an encoder reads and a decoder has written."""

    def make(device: str) -> Inputs:
        return {
            "input_ids": torch.randint(0, vocabulary, (batch, read), device=device),
            "decoder_input_ids": torch.randint(0, vocabulary, (batch, written), device=device),
        }

    return make


def _images(batch: int, labels: bool = False, name: str = "pixel_values") -> Callable[..., Inputs]:
    def make(device: str) -> Inputs:
        pixels = torch.randn(batch, 3, 224, 224, device=device)
        return {name: pixels} | ({"labels": torch.randint(0, 1000, (batch,), device=device)} if labels else {})

    return make


CASES = {
    "bert 32x128": Case(bert, _tokens(32, 128, 30522), weight=3),
    "bert 32x128 masked": Case(bert, _tokens(32, 128, 30522, mask=True), weight=3),
    "bert 1x128": Case(bert, _tokens(1, 128, 30522), weight=3),
    "bert 32x128 train": Case(_bert_with_head, _tokens(32, 128, 30522, labels=True), train=True, weight=8),
    "gpt2 8x1024": Case(gpt2, _tokens(8, 1024, 50257), weight=5),
    "gpt2 8x1024 train": Case(gpt2, _tokens(8, 1024, 50257, labels=True), train=True, weight=10),
    "llama 4x2048": Case(llama, _tokens(4, 2048, 32000), weight=4),
    "llama 4x2048 train": Case(llama, _tokens(4, 2048, 32000, labels=True), train=True, weight=9),
    "llama 1x16": Case(llama, _tokens(1, 16, 32000), weight=2),
    "resnet50 64": Case(_resnet, _images(64), weight=6),
    "resnet50 64 train": Case(_resnet, _images(64, labels=True), train=True, weight=10),
    "vit-b 64": Case(_vit, _images(64), weight=4),
    "vit-b 64 train": Case(_vit, _images(64, labels=True), train=True, weight=9),
    "qwen2 2x1024 train": Case(qwen2, _tokens(2, 1024, 151936, labels=True), train=True, weight=10),
    "t5-small 16x512": Case(_t5_small, _two_texts(16, 512, 256, 32128), weight=5),
    "gpt-oss 2x2048": Case(_gpt_oss, _tokens(2, 2048, 32000), weight=5),
    "gpt-oss 2x2048 train": Case(_gpt_oss, _tokens(2, 2048, 32000, labels=True), train=True, weight=9),
    "swin-t 64": Case(partial(_timm, "swin_tiny_patch4_window7_224"), _images(64, name="x"), weight=6),
    "timm vit-b 64": Case(partial(_timm, "vit_base_patch16_224"), _images(64, name="x"), weight=4),
    "convnext-t 64": Case(partial(_timm, "convnext_tiny"), _images(64, name="x"), weight=6),
    "mobilenetv3-l 128 train": Case(
        partial(_timm, "mobilenetv3_large_100", train=True), _images(128, labels=True, name="x"), train=True, weight=9
    ),
    "small gpt 8x512 train": Case(SmallGpt, _tokens(8, 512, 50304, labels=True), train=True, weight=9),
}
TINY = {
    "tiny bert": Case(_tiny_bert, _tokens(2, 16, 100)),
    "tiny gpt2 train": Case(_tiny_gpt2, _tokens(2, 16, 100, labels=True), train=True),
    "tiny gpt train": Case(partial(SmallGpt, 100, 64, 1, 2), _tokens(2, 16, 100, labels=True), train=True),
}
SHOWN = (
    "gpt2 8x1024", "gpt2 8x1024 train", "bert 32x128", "bert 1x128", "llama 4x2048", "llama 4x2048 train", "llama 1x16",
    "resnet50 64 train", "vit-b 64", "t5-small 16x512", "swin-t 64", "timm vit-b 64", "qwen2 2x1024 train",
    "convnext-t 64", "mobilenetv3-l 128 train", "small gpt 8x512 train",
)  # fmt: skip
"""The models that results are about."""
EVERY = CASES | TINY
"""Those too on which benchmarks are tried on a CPU."""


@dataclass(frozen=True)
class Family:
    """One model at any size: a batch, and a length where it has one."""

    made: Callable[[int, int], Case]
    batch: tuple[int, int]
    """From how many to how many samples are drawn."""
    length: tuple[int, int] = (0, 0)
    """From where to where lengths are drawn, in steps of eight."""


FAMILIES = {
    "bert": Family(lambda b, n: Case(bert, _tokens(b, n, 30522), weight=3), (1, 64), (32, 512)),
    "gpt2": Family(lambda b, n: Case(gpt2, _tokens(b, n, 50257), weight=5), (1, 16), (128, 1024)),
    "gpt2 train": Family(lambda b, n: Case(gpt2, _tokens(b, n, 50257, labels=True), True, 10), (1, 12), (128, 1024)),
    "llama": Family(lambda b, n: Case(llama, _tokens(b, n, 32000), weight=4), (1, 8), (16, 2048)),
    "llama train": Family(lambda b, n: Case(llama, _tokens(b, n, 32000, labels=True), True, 9), (1, 6), (128, 2048)),
    "qwen2 train": Family(lambda b, n: Case(qwen2, _tokens(b, n, 151936, labels=True), True, 10), (1, 4), (256, 1536)),
    "t5-small": Family(lambda b, n: Case(_t5_small, _two_texts(b, n, n // 2, 32128), weight=5), (2, 32), (128, 1024)),
    "resnet50 train": Family(lambda b, _: Case(_resnet, _images(b, labels=True), True, 10), (16, 128)),
    "vit-b": Family(lambda b, _: Case(_vit, _images(b), weight=4), (1, 128)),
    "swin-t": Family(lambda b, _: Case(EVERY["swin-t 64"].build, _images(b, name="x"), weight=6), (8, 128)),
    "timm vit-b": Family(lambda b, _: Case(EVERY["timm vit-b 64"].build, _images(b, name="x"), weight=4), (1, 128)),
    "convnext-t": Family(lambda b, _: Case(EVERY["convnext-t 64"].build, _images(b, name="x"), weight=6), (8, 128)),
    "mobilenetv3-l train": Family(
        lambda b, _: Case(EVERY["mobilenetv3-l 128 train"].build, _images(b, True, "x"), True, 9), (16, 256)
    ),
    "small gpt train": Family(
        lambda b, n: Case(SmallGpt, _tokens(b, n, 50304, labels=True), True, 9), (1, 16), (128, 1024)
    ),
}
"""Models whose size may be drawn, and from where."""


def drawn(seed: int) -> tuple[str, ...]:
    """Each family at a size that the seed draws, none of which a case above has.

    >>> drawn(1) == drawn(1) != drawn(2)
    True
    >>> set(drawn(1)).isdisjoint(EVERY)
    True
    """
    numbers, names = random.Random(seed), []
    for name, family in FAMILIES.items():
        found = None
        while found is None or found in EVERY:
            batch, length = (numbers.randint(*one) for one in (family.batch, family.length))
            found = _sized(name, batch, length // 8 * 8)
        names.append(found)
    return tuple(names)


def _sized(family: str, batch: int, length: int) -> str:
    model, train = family.removesuffix(" train"), family.endswith(" train")
    return f"{model} {batch}{f'x{length}' if length else ''}{' train' if train else ''}"


def case_of(name: str) -> Case:
    """A case above, or a family at a size: KeyError for another name.

    >>> case_of("bert 3x40").inputs("cpu")["input_ids"].shape
    torch.Size([3, 40])
    """
    if name in EVERY:
        return EVERY[name]
    model, _, size = name.removesuffix(" train").rpartition(" ")
    batch, _, length = size.partition("x")
    return FAMILIES[f"{model} train" if name.endswith(" train") else model].made(int(batch), int(length or 0))


SECOND = {
    "bert 32x128": Case(partial(bert, num_hidden_layers=9), _tokens(32, 128, 30522)),
    "llama 4x2048": Case(partial(llama, num_hidden_layers=6), _tokens(4, 2048, 32000)),
    "tiny bert": Case(partial(_tiny_bert, num_hidden_layers=3), _tokens(2, 16, 100)),
}
"""To some of them a second model of as many of the same layers as is said here."""
