"""Small random configurations of `transformers` models, which run unmodified: those of the tests.

Each entry builds a model and its inputs on the CPU from a seed, without a network; tests move them to their device.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

Inputs = dict[str, Tensor]

VOCAB = 64


@dataclass(frozen=True)
class Entry:
    """One architecture: how to build it, what to feed it, and whether tests train it."""

    name: str
    model: Callable[[float], nn.Module]
    """Builds the model; the argument is the dropout probability, for those that have dropout."""
    inputs: Callable[[], Inputs]
    trainable: bool = True
    """The inputs hold labels, so that the model returns its own loss."""
    has_dropout: bool = False

    def build(self, *, dropout: float = 0.0, seed: int = 0) -> tuple[nn.Module, Inputs]:
        """A fresh model with random weights, and its inputs: the same for the same seed."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self.model(dropout), self.inputs()


@dataclass(frozen=True)
class Hf:
    """Builds a `transformers` model from its class names and the sizes of its configuration."""

    config_class: str
    model_class: str
    sizes: Mapping[str, Any]
    dropout_names: tuple[str, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, dropout: float) -> nn.Module:
        transformers = importlib.import_module("transformers")
        config = getattr(transformers, self.config_class)(
            **self.sizes, **dict.fromkeys(self.dropout_names, dropout), **self.extra
        )
        model: nn.Module = getattr(transformers, self.model_class)(config)
        return model


def _tokens(batch: int = 2, length: int = 11) -> Tensor:
    # Not 0 or 1: several configurations use these for padding and end of sequence.
    return torch.randint(3, VOCAB, (batch, length))


def _padding_mask(ids: Tensor) -> Tensor:
    mask = torch.ones_like(ids)
    mask[-1, -3:] = 0
    return mask


def masked_lm() -> Inputs:
    """Tokens, some of them padding, and what each should be."""
    ids = _tokens()
    return {"input_ids": ids, "attention_mask": _padding_mask(ids), "labels": ids.clone()}


def causal_lm() -> Inputs:
    """Tokens, of which each should follow from those before it."""
    ids = _tokens()
    return {"input_ids": ids, "labels": ids.clone()}


def seq2seq() -> Inputs:
    """Tokens, some of them padding, and those that they should become."""
    ids = _tokens()
    return {"input_ids": ids, "attention_mask": _padding_mask(ids), "labels": _tokens(length=7)}


def images() -> Inputs:
    """Two small pictures, and their kinds."""
    return {"pixel_values": torch.randn(2, 3, 32, 32), "labels": torch.tensor([1, 0])}


def _image_text() -> Inputs:
    ids = _tokens(length=7)
    return {"input_ids": ids, "pixel_values": torch.randn(2, 3, 32, 32), "attention_mask": _padding_mask(ids)}


def _waveform() -> Inputs:
    return {"input_values": torch.randn(2, 400), "labels": torch.tensor([1, 0])}


def _spectrogram() -> Inputs:
    return {"input_features": torch.randn(2, 8, 40), "labels": _tokens(length=6)}


# Weights as large as trained ones: with the usual 0.02, two tiny layers leave nothing that an error could show in.
WEIGHTS = 0.2
ENCODER: dict[str, Any] = {
    "initializer_range": WEIGHTS,
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 40,
}
DECODER: dict[str, Any] = {
    **ENCODER,
    "num_key_value_heads": 2,
    "use_cache": False,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
BERT_DROPOUT = ("hidden_dropout_prob", "attention_probs_dropout_prob")
VISION: dict[str, Any] = {
    "initializer_range": WEIGHTS,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "image_size": 32,
    "patch_size": 8,
}

# The auxiliary loss of routers is left out: what collects its logits keeps Dynamo from tracing the model as a whole.
_ROUTED: dict[str, Any] = {"num_experts_per_tok": 2}
BART_DROPOUT = ("dropout", "attention_dropout", "activation_dropout")


def _encoders() -> tuple[Entry, ...]:
    distil = {
        "vocab_size": VOCAB,
        "dim": 32,
        "n_layers": 2,
        "n_heads": 4,
        "hidden_dim": 48,
        "initializer_range": WEIGHTS,
    }
    distil_names = ("dropout", "attention_dropout")
    return (
        Entry("bert", Hf("BertConfig", "BertForMaskedLM", ENCODER, BERT_DROPOUT), masked_lm, has_dropout=True),
        Entry("distilbert", Hf("DistilBertConfig", "DistilBertForMaskedLM", distil, distil_names), masked_lm),
        Entry("roberta", Hf("RobertaConfig", "RobertaForMaskedLM", ENCODER, BERT_DROPOUT), masked_lm),
        Entry("electra", Hf("ElectraConfig", "ElectraForMaskedLM", ENCODER, BERT_DROPOUT), masked_lm),
    )


def _decoders() -> tuple[Entry, ...]:
    gpt2 = {
        "vocab_size": VOCAB,
        "initializer_range": WEIGHTS,
        "n_embd": 32,
        "n_layer": 2,
        "n_head": 4,
        "n_positions": 40,
        "use_cache": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    gpt2_names = ("resid_pdrop", "embd_pdrop", "attn_pdrop")
    window = {"sliding_window": 8}
    gemma = {"head_dim": 8}
    experts = {"num_local_experts": 4, **_ROUTED}
    qwen_experts = {
        "num_experts": 4,
        "moe_intermediate_size": 24,
        "shared_expert_intermediate_size": 24,
        **_ROUTED,
    }
    mamba = {"vocab_size": VOCAB, "hidden_size": 32, "state_size": 4, "num_hidden_layers": 2, "use_cache": False}
    return (
        Entry("gpt2", Hf("GPT2Config", "GPT2LMHeadModel", gpt2, gpt2_names), causal_lm, has_dropout=True),
        Entry("llama", Hf("LlamaConfig", "LlamaForCausalLM", DECODER), causal_lm),
        Entry("qwen2", Hf("Qwen2Config", "Qwen2ForCausalLM", DECODER), causal_lm),
        Entry("mistral", Hf("MistralConfig", "MistralForCausalLM", {**DECODER, **window}), causal_lm),
        Entry("gemma", Hf("GemmaConfig", "GemmaForCausalLM", {**DECODER, **gemma}), causal_lm),
        Entry("mixtral", Hf("MixtralConfig", "MixtralForCausalLM", {**DECODER, **experts}), causal_lm),
        Entry("qwen2_moe", Hf("Qwen2MoeConfig", "Qwen2MoeForCausalLM", {**DECODER, **qwen_experts}), causal_lm),
        Entry("mamba", Hf("MambaConfig", "MambaForCausalLM", mamba), causal_lm),
    )


def _encoder_decoders() -> tuple[Entry, ...]:
    t5 = {
        "vocab_size": VOCAB,
        "d_model": 32,
        "d_kv": 8,
        "d_ff": 48,
        "num_layers": 2,
        "num_heads": 4,
        "decoder_start_token_id": 0,
        "use_cache": False,
    }
    bart = {
        "init_std": WEIGHTS,
        "vocab_size": VOCAB,
        "d_model": 32,
        "encoder_layers": 1,
        "decoder_layers": 1,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
        "encoder_ffn_dim": 48,
        "decoder_ffn_dim": 48,
        "max_position_embeddings": 40,
        "use_cache": False,
    }
    return (
        Entry("t5", Hf("T5Config", "T5ForConditionalGeneration", t5, ("dropout_rate",)), seq2seq, has_dropout=True),
        Entry("bart", Hf("BartConfig", "BartForConditionalGeneration", bart, BART_DROPOUT), seq2seq),
    )


def _vision() -> tuple[Entry, ...]:
    wide = {"initializer_range": WEIGHTS}
    convnext = {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1], "patch_size": 2, **wide}
    swin = {"image_size": 32, "patch_size": 2, "embed_dim": 8, "depths": [1, 2], "num_heads": [2, 4], "window_size": 4}
    swin.update(wide)
    resnet = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic"}
    swin_names = (*BERT_DROPOUT, "drop_path_rate")
    clip = {
        "text_config": {**ENCODER, "projection_dim": 16, "eos_token_id": 2, "bos_token_id": 1},
        "vision_config": {**VISION, "projection_dim": 16},
        "projection_dim": 16,
    }
    return (
        Entry("vit", Hf("ViTConfig", "ViTForImageClassification", VISION, BERT_DROPOUT), images),
        Entry("convnext", Hf("ConvNextConfig", "ConvNextForImageClassification", convnext), images),
        Entry("swin", Hf("SwinConfig", "SwinForImageClassification", swin, swin_names), images),
        Entry("resnet", Hf("ResNetConfig", "ResNetForImageClassification", resnet), images),
        Entry("clip", Hf("CLIPConfig", "CLIPModel", clip), _image_text, trainable=False),
    )


def _audio() -> tuple[Entry, ...]:
    wav2vec2 = {
        **{k: v for k, v in ENCODER.items() if k != "max_position_embeddings"},
        "conv_dim": (8, 8),
        "conv_stride": (5, 2),
        "conv_kernel": (10, 3),
        "num_conv_pos_embeddings": 4,
        "num_conv_pos_embedding_groups": 2,
        "classifier_proj_size": 16,
        "apply_spec_augment": False,
        "layerdrop": 0.0,
    }
    wav2vec2_names = ("hidden_dropout", "attention_dropout", "activation_dropout", "feat_proj_dropout", "final_dropout")
    whisper = {
        "init_std": WEIGHTS,
        "vocab_size": VOCAB,
        "num_mel_bins": 8,
        "d_model": 32,
        "encoder_layers": 1,
        "decoder_layers": 1,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
        "encoder_ffn_dim": 48,
        "decoder_ffn_dim": 48,
        "max_source_positions": 20,
        "max_target_positions": 20,
        "decoder_start_token_id": 1,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "use_cache": False,
    }
    wav2vec2_model = Hf("Wav2Vec2Config", "Wav2Vec2ForSequenceClassification", wav2vec2, wav2vec2_names)
    whisper_model = Hf("WhisperConfig", "WhisperForConditionalGeneration", whisper, BART_DROPOUT)
    return (
        Entry("wav2vec2", wav2vec2_model, _waveform),
        Entry("whisper", whisper_model, _spectrogram),
    )


TRANSFORMERS: dict[str, Entry] = {
    entry.name: entry for entry in (*_encoders(), *_decoders(), *_encoder_decoders(), *_vision(), *_audio())
}
