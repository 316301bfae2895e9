"""More small configurations of `transformers`, for the judge alone: tests would take too long with them."""

from __future__ import annotations

from typing import Any

from benchmarks.small_zoo import (
    BART_DROPOUT,
    BERT_DROPOUT,
    DECODER,
    ENCODER,
    VISION,
    VOCAB,
    WEIGHTS,
    Entry,
    Hf,
    causal_lm,
    images,
    masked_lm,
    seq2seq,
)

_WIDE = {"initializer_range": WEIGHTS}
_MULTI_HEAD = {**DECODER, "num_key_value_heads": 4}
_GPT: dict[str, Any] = {
    **_WIDE, "vocab_size": VOCAB, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 40, "use_cache": False,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_GPT_DROPOUT = ("resid_pdrop", "embd_pdrop", "attn_pdrop")
_BART: dict[str, Any] = {
    "init_std": WEIGHTS, "vocab_size": VOCAB, "d_model": 32, "encoder_layers": 1, "decoder_layers": 1,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48,
    "max_position_embeddings": 40, "use_cache": False, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "decoder_start_token_id": 1, "forced_eos_token_id": None,
}  # fmt: skip


def _encoders() -> tuple[Entry, ...]:
    albert = {**ENCODER, "embedding_size": 16}
    layout = {**ENCODER, "max_2d_position_embeddings": 32}
    return (
        Entry("albert", Hf("AlbertConfig", "AlbertForMaskedLM", albert, BERT_DROPOUT), masked_lm),
        Entry("deberta_v2", Hf("DebertaV2Config", "DebertaV2ForMaskedLM", ENCODER, BERT_DROPOUT), masked_lm),
        Entry("mpnet", Hf("MPNetConfig", "MPNetForMaskedLM", ENCODER, BERT_DROPOUT), masked_lm),
        Entry("xlm_roberta", Hf("XLMRobertaConfig", "XLMRobertaForMaskedLM", ENCODER, BERT_DROPOUT), masked_lm),
        Entry("layoutlm", Hf("LayoutLMConfig", "LayoutLMForMaskedLM", layout, BERT_DROPOUT), masked_lm),
        Entry("convbert", Hf("ConvBertConfig", "ConvBertForMaskedLM", ENCODER, BERT_DROPOUT), masked_lm),
    )


def _decoders() -> tuple[Entry, ...]:
    opt = {
        **_WIDE, "init_std": WEIGHTS, "vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2, "ffn_dim": 48,
        "num_attention_heads": 4, "max_position_embeddings": 40, "word_embed_proj_dim": 32, "use_cache": False,
        "pad_token_id": 0,
    }  # fmt: skip
    bloom = {**_WIDE, "vocab_size": VOCAB, "hidden_size": 32, "n_layer": 2, "n_head": 4, "use_cache": False}
    neo = {
        **_WIDE, "vocab_size": VOCAB, "hidden_size": 32, "num_layers": 2, "num_heads": 4, "intermediate_size": 48,
        "attention_types": [[["global", "local"], 1]], "window_size": 8, "max_position_embeddings": 40,
        "use_cache": False, "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip
    gptj = {**_GPT, "rotary_dim": 4}
    falcon = {**bloom, "num_hidden_layers": 2, "num_attention_heads": 4, "bos_token_id": 1, "eos_token_id": 2}
    falcon = {key: value for key, value in falcon.items() if key not in ("n_layer", "n_head")}
    stable = ("attention_dropout", "hidden_dropout")
    gemma2 = {**DECODER, "head_dim": 8, "sliding_window": 8, "query_pre_attn_scalar": 8}
    return (
        Entry("opt", Hf("OPTConfig", "OPTForCausalLM", opt, ("dropout", "attention_dropout")), causal_lm),
        Entry(
            "bloom", Hf("BloomConfig", "BloomForCausalLM", bloom, stable), causal_lm, trainable=False
        ),  # its GELU has a gradient of its own, which a trace cannot hold
        Entry("gpt_neo", Hf("GPTNeoConfig", "GPTNeoForCausalLM", neo), causal_lm),
        Entry("gpt_neox", Hf("GPTNeoXConfig", "GPTNeoXForCausalLM", _MULTI_HEAD), causal_lm),
        Entry("gptj", Hf("GPTJConfig", "GPTJForCausalLM", gptj, _GPT_DROPOUT), causal_lm),
        Entry("codegen", Hf("CodeGenConfig", "CodeGenForCausalLM", gptj, _GPT_DROPOUT), causal_lm),
        Entry("phi", Hf("PhiConfig", "PhiForCausalLM", DECODER), causal_lm),
        Entry("falcon", Hf("FalconConfig", "FalconForCausalLM", falcon), causal_lm),
        Entry("stablelm", Hf("StableLmConfig", "StableLmForCausalLM", DECODER), causal_lm),
        Entry("olmo2", Hf("Olmo2Config", "Olmo2ForCausalLM", DECODER), causal_lm),
        Entry("qwen3", Hf("Qwen3Config", "Qwen3ForCausalLM", {**DECODER, "head_dim": 8}), causal_lm),
        Entry("gemma2", Hf("Gemma2Config", "Gemma2ForCausalLM", gemma2), causal_lm),
        Entry("cohere", Hf("CohereConfig", "CohereForCausalLM", DECODER), causal_lm),
        Entry("starcoder2", Hf("Starcoder2Config", "Starcoder2ForCausalLM", DECODER), causal_lm),
        Entry("persimmon", Hf("PersimmonConfig", "PersimmonForCausalLM", _MULTI_HEAD), causal_lm),
    )


def _others() -> tuple[Entry, ...]:
    labels = {"num_labels": 10}
    pvt = {
        **_WIDE, "image_size": 32, "hidden_sizes": [8, 16], "depths": [1, 1], "num_attention_heads": [1, 2],
        "sr_ratios": [2, 1], "patch_sizes": [3, 3], "strides": [4, 2], "mlp_ratios": [2, 2], "num_encoder_blocks": 2,
    }  # fmt: skip
    regnet = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "groups_width": 4, "layer_type": "y"}
    pool = {
        "hidden_sizes": [8, 16], "depths": [1, 1], "num_encoder_blocks": 2, "patch_sizes": [7, 3], "strides": [4, 2],
        "padding": [2, 1], "mlp_ratio": 2.0, "drop_path_rate": 0.0,
    }  # fmt: skip
    return (
        Entry("mbart", Hf("MBartConfig", "MBartForConditionalGeneration", _BART, BART_DROPOUT), seq2seq),
        Entry("marian", Hf("MarianConfig", "MarianMTModel", {**_BART, "decoder_vocab_size": VOCAB}, BART_DROPOUT), seq2seq),
        Entry("pegasus", Hf("PegasusConfig", "PegasusForConditionalGeneration", _BART, BART_DROPOUT), seq2seq),
        Entry("deit", Hf("DeiTConfig", "DeiTForImageClassification", {**VISION, **labels}, BERT_DROPOUT), images),
        Entry("dinov2", Hf("Dinov2Config", "Dinov2ForImageClassification", VISION), images),
        Entry("regnet", Hf("RegNetConfig", "RegNetForImageClassification", regnet), images),
        Entry("poolformer", Hf("PoolFormerConfig", "PoolFormerForImageClassification", pool), images),
        Entry("pvt_v2", Hf("PvtV2Config", "PvtV2ForImageClassification", pvt), images),
    )  # fmt: skip


MORE: dict[str, Entry] = {entry.name: entry for entry in (*_encoders(), *_decoders(), *_others())}
