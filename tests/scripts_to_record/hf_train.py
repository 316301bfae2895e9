"""Trains a small GPT-2 of random weights with transformers' Trainer: python hf_train.py --output_dir out --torch_compile"""

import torch
from transformers import GPT2Config, GPT2LMHeadModel, HfArgumentParser, Trainer, TrainingArguments, set_seed

LENGTH = 32


class Sentences(torch.utils.data.Dataset):
    def __init__(self, count):
        generator = torch.Generator().manual_seed(1)
        self.ids = torch.randint(0, 256, (count, LENGTH), generator=generator)

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return {"input_ids": self.ids[i], "labels": self.ids[i]}


def main():
    (args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
    set_seed(args.seed)
    config = GPT2Config(
        vocab_size=256, n_positions=LENGTH, n_embd=64, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False,
    )  # fmt: skip
    trainer = Trainer(model=GPT2LMHeadModel(config), args=args, train_dataset=Sentences(64))
    print("loss", trainer.train().training_loss)
    trainer.save_model()


if __name__ == "__main__":
    main()
