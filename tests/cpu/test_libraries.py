"""What docs/libraries.md shows runs, with small models made here, and runs under fuseplan."""

from __future__ import annotations

import re
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import fuseplan
from checks.project import ROOT

PAGE = ROOT / "docs" / "libraries.md"
SECTION = re.compile(r"^## (.*?)$.*?^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
BLOCKS = dict(SECTION.findall(PAGE.read_text(encoding="utf-8")))
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "good", "day"]
SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
Names = dict[str, Any]


@dataclass(frozen=True)
class Library:
    """What one section of the page is given, and what it should have come to."""

    given: Callable[[Path], Names]
    result: Callable[[Names], Any] = lambda names: None
    """What has to be as it is without fuseplan; nothing where it draws or trains."""
    trained: tuple[str, ...] = field(default=())
    """The modules that a training has to change."""


def _bert(_: Path) -> Any:
    from transformers import BertConfig, BertForSequenceClassification

    return BertForSequenceClassification(BertConfig(vocab_size=len(WORDS), **SMALL)).eval()


def _tokenizer(folder: Path) -> Any:
    from transformers import BertTokenizerFast

    (folder / "vocab.txt").write_text("\n".join(WORDS), encoding="utf-8")
    return BertTokenizerFast(str(folder / "vocab.txt"))


def _trainer(folder: Path) -> Names:
    samples = [{"input_ids": torch.randint(5, 9, (8,)), "labels": torch.tensor(i % 2)} for i in range(32)]
    return {"model": _bert(folder), "dataset": samples}


def _pipeline(folder: Path) -> Names:
    return {"model": _bert(folder), "tokenizer": _tokenizer(folder)}


def _generate(_: Path) -> Names:
    from transformers import CompileConfig, LlamaConfig, LlamaForCausalLM

    CompileConfig._compile_all_devices = True  # else it compiles on GPUs alone
    model = LlamaForCausalLM(LlamaConfig(vocab_size=50, **SMALL)).eval()
    return {"model": model, "prompt": torch.randint(0, 50, (1, 5))}


def _sentences(folder: Path) -> Names:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
    from transformers import BertConfig, BertModel

    BertModel(BertConfig(vocab_size=len(WORDS), **SMALL)).save_pretrained(folder)
    _tokenizer(folder).save_pretrained(folder)
    return {"encoder": SentenceTransformer(modules=[Transformer(str(folder)), Pooling(16)], device="cpu")}


def _diffusers(_: Path) -> Names:
    from diffusers import DDPMPipeline, DDPMScheduler, UNet2DModel

    blocks = {"down_block_types": ("DownBlock2D", "AttnDownBlock2D"), "up_block_types": ("AttnUpBlock2D", "UpBlock2D")}
    unet = UNet2DModel(8, 1, 1, layers_per_block=1, block_out_channels=(8, 8), norm_num_groups=4, **blocks)
    return {"pipe": DDPMPipeline(unet, DDPMScheduler())}


def _batches() -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.randn(16, 8), torch.randn(16, 1)), batch_size=4)


class Net(nn.Sequential):
    """Of a class of its own: torch compiles none of its own modules in place."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 1))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)


def _lightning(_: Path) -> Names:
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = Net()

        def training_step(self, batch: list[Tensor], index: int) -> Tensor:
            inputs, targets = batch
            return nn.functional.mse_loss(self.net(inputs), targets)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 0.1)

    return {"module": Module(), "batches": _batches()}


def _accelerate(_: Path) -> Names:
    model = Net()
    return {"model": model, "optimizer": torch.optim.SGD(model.parameters(), 0.1), "batches": _batches()}


LIBRARIES = {
    "transformers: Trainer": Library(_trainer, trained=("model",)),
    "transformers: pipelines": Library(
        _pipeline, lambda names: [one["score"] for one in names["classify"](["a good day", "b"])]
    ),
    "transformers: generate": Library(_generate, lambda names: names["tokens"].tolist()),
    "sentence-transformers": Library(_sentences, lambda names: names["vectors"]),
    "diffusers": Library(_diffusers, lambda names: names["images"]),
    "Lightning": Library(_lightning, trained=("module",)),
    "accelerate": Library(_accelerate, trained=("model",)),
}


DEAR = ("transformers: Trainer", "transformers: pipelines", "diffusers")
"""Whose models Inductor compiles for ten seconds and more: the default is eager there, unless all is run."""


@pytest.fixture(autouse=True)
def _apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def made(library: Library, folder: Path) -> Names:
    """The same each time."""
    torch.manual_seed(1)
    return {"__name__": "__main__", "torch": torch, **library.given(folder)}


def ran(block: str, names: Names) -> Names:
    """The names of a section once it has run."""
    torch.manual_seed(0)
    exec(compile(block, str(PAGE), "exec"), names)
    return names


def test_each_section_is_known() -> None:
    assert BLOCKS.keys() == LIBRARIES.keys()


@pytest.mark.parametrize(
    ("name", "default"),
    [
        *((name, "eager" if name in DEAR else "inductor") for name in LIBRARIES),
        *(pytest.param(name, "inductor", marks=pytest.mark.exhaustive) for name in DEAR),
    ],
)
def test_a_library_runs_under_fuseplan(
    name: str, default: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if default == "eager":
        monkeypatch.setattr("fuseplan.lookup.missing_compiler", lambda *_: "no compiler in this test")
    library = LIBRARIES[name]
    given = made(library, tmp_path)
    before = {one: deepcopy(given[one].state_dict()) for one in library.trained}
    plain = re.sub(r'"fuseplan"', '"eager"', BLOCKS[name]).replace('"db": "tuning.db"', "")
    expected = None if library.trained else library.result(ran(plain, made(library, tmp_path)))
    torch.compiler.reset()
    met = fuseplan.stats().get("programs", 0)
    found = ran(BLOCKS[name], given)
    assert fuseplan.stats()["programs"] > met
    for one in library.trained:
        after = found[one].state_dict()
        assert after.keys() == before[one].keys()
        assert any(not torch.equal(after[key], value) for key, value in before[one].items())
    if expected is not None:
        np.testing.assert_allclose(library.result(found), expected, rtol=1e-4, atol=1e-5)
