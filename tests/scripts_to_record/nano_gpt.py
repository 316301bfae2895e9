"""Trains a small GPT on characters, all in one file: python nano_gpt.py --n_layer=2 --device=cuda"""

import math
import sys
from contextlib import nullcontext

import torch
from torch import nn
from torch.nn import functional as F

# what may be changed as --name=value
out = "ckpt.pt"
batch_size = 4
block_size = 32
n_layer = 2
n_head = 2
n_embd = 32
dropout = 0.0
learning_rate = 1e-2
max_iters = 5
eval_interval = 4
device = "cpu"
dtype = "float32"
compile = True
for arg in sys.argv[1:]:
    name, _, value = arg.removeprefix("--").partition("=")
    if name not in globals():
        sys.exit(f"there is no setting {name}")
    globals()[name] = type(globals()[name])(value) if not isinstance(globals()[name], bool) else value == "True"

text = "the quick brown fox jumps over the lazy dog. " * 40
letters = sorted(set(text))
data = torch.tensor([letters.index(letter) for letter in text])


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(n_embd, 3 * n_embd, bias=False)
        self.proj = nn.Linear(n_embd, n_embd, bias=False)

    def forward(self, x):
        b, t, c = x.size()
        q, k, v = (part.view(b, t, n_head, c // n_head).transpose(1, 2) for part in self.qkv(x).split(n_embd, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout if self.training else 0.0, is_causal=True)
        return self.proj(y.transpose(1, 2).contiguous().view(b, t, c))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1 = nn.LayerNorm(n_embd)
        self.attn = Attention()
        self.ln_2 = nn.LayerNorm(n_embd)
        self.mlp = nn.Sequential(
            nn.Linear(n_embd, 4 * n_embd), nn.GELU(), nn.Linear(4 * n_embd, n_embd), nn.Dropout(dropout)
        )

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(len(letters), n_embd)
        self.wpe = nn.Embedding(block_size, n_embd)
        self.blocks = nn.ModuleList(Block() for _ in range(n_layer))
        self.ln_f = nn.LayerNorm(n_embd)
        self.lm_head = nn.Linear(n_embd, len(letters), bias=False)
        self.wte.weight = self.lm_head.weight

    def forward(self, idx, targets=None):
        pos = torch.arange(0, idx.size(1), dtype=torch.long, device=idx.device)
        x = self.wte(idx) + self.wpe(pos)
        for block in self.blocks:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        return logits, F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))


def get_batch():
    ix = torch.randint(len(data) - block_size, (batch_size,))
    x = torch.stack([data[i : i + block_size] for i in ix])
    y = torch.stack([data[i + 1 : i + 1 + block_size] for i in ix])
    return x.to(device), y.to(device)


def get_lr(it):
    return learning_rate * 0.5 * (1 + math.cos(math.pi * it / max_iters))


torch.manual_seed(1337)
ctx = nullcontext() if dtype == "float32" else torch.amp.autocast(device_type=device, dtype=getattr(torch, dtype))
model = GPT().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
raw_model = model
if compile:
    print("compiling the model...")
    model = torch.compile(model)

for it in range(max_iters):
    for group in optimizer.param_groups:
        group["lr"] = get_lr(it)
    X, Y = get_batch()
    if eval_interval and it % eval_interval == eval_interval - 1:
        model.eval()
        with torch.no_grad(), ctx:
            print(f"step {it}: val loss {model(X, Y)[1].item():.6f}")
        model.train()
    with ctx:
        _, loss = model(X, Y)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    print(f"iter {it}: loss {loss.item():.6f}")
torch.save(raw_model.state_dict(), out)
