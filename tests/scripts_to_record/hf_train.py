"""Trains a small BERT of random weights with transformers' Trainer: python hf_train.py --output_dir out --torch_compile"""

from dataclasses import dataclass

import torch
from transformers import BertConfig, BertForMaskedLM, HfArgumentParser, Trainer, TrainingArguments, set_seed

MASK = 3


@dataclass
class ModelArguments:
    layers: int = 2
    width: int = 64
    length: int = 32


class Sentences(torch.utils.data.Dataset):
    def __init__(self, count, length):
        generator = torch.Generator().manual_seed(1)
        self.ids = torch.randint(4, 256, (count, length), generator=generator)
        self.masked = torch.rand((count, length), generator=generator) < 0.15
        self.masked[:, 0] = True

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return {
            "input_ids": self.ids[i].masked_fill(self.masked[i], MASK),
            "labels": self.ids[i].masked_fill(~self.masked[i], -100),
        }


def main():
    model_args, args = HfArgumentParser((ModelArguments, TrainingArguments)).parse_args_into_dataclasses()
    set_seed(args.seed)
    config = BertConfig(
        vocab_size=256,
        hidden_size=model_args.width,
        intermediate_size=4 * model_args.width,
        num_hidden_layers=model_args.layers,
        num_attention_heads=4,
        max_position_embeddings=model_args.length,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    trainer = Trainer(
        model=BertForMaskedLM(config), args=args, train_dataset=Sentences(64, model_args.length)
    )  # fmt: skip
    print("loss", trainer.train().training_loss)
    trainer.save_model()


if __name__ == "__main__":
    main()
