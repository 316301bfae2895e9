"""The models of benchmark `serve`: unmodified architectures of transformers with random weights, and what is asked of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import nn

from benchmarks.serve.requests import Lengths, Pattern
from benchmarks.zoo import built

Kind = Literal["decoder", "encoder", "encoder-decoder"]


@dataclass(frozen=True)
class ServedCase:
    """One model, how many requests it works on at a time, and what these are like."""

    kind: Kind
    build: Callable[[], nn.Module]
    pattern: Pattern
    slots: int
    requests: int
    """Of one pass."""
    cache: int = 0
    """Tokens that the cache of one slot holds; none for an encoder."""

    def load(self, device: str, dtype: torch.dtype | None = None) -> nn.Module:
        """The model from a fixed seed: in bf16 on a GPU and float32 on a CPU, unless another dtype is given."""
        torch.manual_seed(0)
        usual = torch.bfloat16 if device.startswith("cuda") else torch.float32
        model = self.build().to(device, dtype or usual).eval()
        assert not self.cache or self.cache >= self.pattern.longest()
        return model


_LONG: dict[str, Any] = {"max_position_embeddings": 32768}
_NO_END: dict[str, Any] = {"eos_token_id": None, "pad_token_id": 0, "bos_token_id": 1}
"""A request asks for so many tokens; random weights would end it anywhere."""
_llama = partial(
    built, "LlamaForCausalLM", "LlamaConfig", hidden_size=2048, intermediate_size=5632, num_hidden_layers=12,
    num_attention_heads=32, num_key_value_heads=8, vocab_size=32000, **_LONG, **_NO_END,
)  # fmt: skip
_qwen2 = partial(
    built, "Qwen2ForCausalLM", "Qwen2Config", hidden_size=896, intermediate_size=4864, num_hidden_layers=12,
    num_attention_heads=14, num_key_value_heads=2, vocab_size=151936, **_LONG, **_NO_END,
)  # fmt: skip
_gemma3 = partial(
    built, "Gemma3ForCausalLM", "Gemma3TextConfig", hidden_size=1152, intermediate_size=6912, num_hidden_layers=12,
    num_attention_heads=4, num_key_value_heads=1, head_dim=256, vocab_size=65536, sliding_window=512, **_LONG, **_NO_END,
)  # fmt: skip
_bert = partial(built, "BertModel", "BertConfig")
_SPEECH: dict[str, Any] = {
    **_NO_END,
    "decoder_start_token_id": 1,
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
}
_whisper = partial(
    built, "WhisperForConditionalGeneration", "WhisperConfig", d_model=512, encoder_layers=6, decoder_layers=6,
    num_hidden_layers=6, encoder_attention_heads=8, decoder_attention_heads=8, encoder_ffn_dim=2048, decoder_ffn_dim=2048,
    **_SPEECH,
)  # fmt: skip
_TALK = Pattern(Lengths(192, 0.7, 65, 512), Lengths(48, 0.5, 8, 128))
CASES = {
    "llama": ServedCase("decoder", _llama, _TALK, slots=16, requests=64, cache=640),
    "qwen2": ServedCase("decoder", _qwen2, _TALK, slots=16, requests=64, cache=640),
    "gemma3": ServedCase("decoder", _gemma3, _TALK, slots=16, requests=64, cache=640),
    "bert": ServedCase("encoder", _bert, Pattern(Lengths(96, 0.9, 8, 512)), slots=16, requests=256),
    "whisper": ServedCase(
        "encoder-decoder", _whisper, Pattern(Lengths(4, 0.4, 4, 16), Lengths(48, 0.5, 8, 128)), 16, 64, cache=160
    ),
}
_SMALL: dict[str, Any] = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48, "vocab_size": 64,
    "max_position_embeddings": 512, "initializer_range": 0.2,
}  # fmt: skip
# weights as large as trained ones: with the usual 0.02, two tiny layers leave nothing that a wrong token could come from
_SMALL_DECODER: dict[str, Any] = {**_SMALL, "num_key_value_heads": 2, **_NO_END}
_SMALL_SPEECH: dict[str, Any] = {
    **_SPEECH, "init_std": 0.2, "vocab_size": 64, "num_mel_bins": 8, "d_model": 32, "encoder_layers": 1, "decoder_layers": 1,
    "num_hidden_layers": 1, "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48, "max_source_positions": 20, "max_target_positions": 64,
}  # fmt: skip
_FEW = Pattern(Lengths(10, 0.5, 5, 24), Lengths(5, 0.4, 2, 9))
TINY = {
    "tiny llama": ServedCase(
        "decoder", partial(built, "LlamaForCausalLM", "LlamaConfig", **_SMALL_DECODER), _FEW, 3, 8, cache=40
    ),
    "tiny qwen2": ServedCase(
        "decoder", partial(built, "Qwen2ForCausalLM", "Qwen2Config", **_SMALL_DECODER), _FEW, 3, 8, cache=40
    ),
    "tiny gemma3": ServedCase(
        "decoder",
        partial(built, "Gemma3ForCausalLM", "Gemma3TextConfig", head_dim=8, sliding_window=12, tie_word_embeddings=False, **_SMALL_DECODER),
        _FEW, 3, 8, cache=40,
    ),
    "tiny bert": ServedCase(
        "encoder", partial(built, "BertModel", "BertConfig", **_SMALL), Pattern(Lengths(16, 0.7, 5, 60)), 3, 12
    ),
    "tiny whisper": ServedCase(
        "encoder-decoder", partial(built, "WhisperForConditionalGeneration", "WhisperConfig", **_SMALL_SPEECH),
        Pattern(Lengths(4, 0.3, 3, 8), Lengths(5, 0.4, 2, 9)), 3, 8, cache=24,
    ),
}  # fmt: skip
"""On these it is tried on a CPU."""
EVERY = CASES | TINY
