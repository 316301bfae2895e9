"""docs/results.md on made-up rows of whole models: why a side has no time, which of torch's was best, whose commit it was, what
an earlier version took, and sizes that a seed drew."""

from __future__ import annotations

from typing import Any

from checks import gaps, whole_models


def side(ms: float) -> dict[str, Any]:
    return {"wall_us": ms * 1e3, "first_s": 1.0}


def row(**fields: Any) -> dict[str, Any]:
    sides = {
        "torch.compile": side(3.0),
        "eager": side(4.0),
        "reduce-overhead": side(2.0),
        "max-autotune-no-cudagraphs": {"failed": "not compiled within 240 s"},
        "max-autotune": {
            "failed": "not tried: max-autotune-no-cudagraphs, all of which it does, was not compiled within 240 s"
        },
        "fuseplan": side(1.25),
    }
    usual = {
        "commit": "abcdef0123456", "gpu": "NVIDIA H200, number 0", "library": "transformers", "sides": sides, "noise": 0.004,
        "noise_of": "reduce-overhead", "rounds": 31, "best_torch": "reduce-overhead", "best_tuned": "fuseplan", "speedup": 1.6,
        "verdict": "faster",
    }  # fmt: skip
    return {**usual, **fields}


MACHINE = {"gpu": "Some GPU, 1", "packages": {"torch": "2.11.0"}}


def file_of(models: dict[str, Any], **more: Any) -> dict[str, Any]:
    results = {"models": models, "summary": {"geomean over the best of torch": 1.6}}
    return {"environment": MACHINE, "results": results, **more}


def page(models: dict[str, Any], drawn: dict[str, Any] | None = None, **others: dict[str, Any]) -> str:
    of_drawn = {"environment": MACHINE, "results": drawn} if drawn else {}
    return "\n\n".join(whole_models.parts(file_of(models), of_drawn, others))


def cells(text: str, name: str, section: str = "## Whole models") -> dict[str, str]:
    """The line of a model in the first table of a section, by the names of its columns."""
    lines = text.partition(section)[2].splitlines()
    table = [[cell.strip() for cell in one.strip("|").split("|")] for one in lines if one.startswith("|")]
    found = next(one for one in table if one[0] == name)
    return dict(zip(table[0], found, strict=True))


def test_another_kind_of_gpu_has_a_table_of_its_own() -> None:
    other = row(gpu="NVIDIA H100 80GB HBM3, number 0", sides={**row()["sides"], "fuseplan": side(1.5)}, speedup=1.33)
    machine = {"gpu": "NVIDIA H100 80GB HBM3, 580.1", "packages": {"torch": "2.11.0"}}
    text = page(
        {"bert 32x128": row()}, **{"models.nvidia-h100.gpu": file_of({"bert 32x128": other}, environment=machine)}
    )
    assert cells(text, "bert 32x128")["fuseplan"] == "1.25"
    assert cells(text, "bert 32x128", "## Whole models on an NVIDIA H100 80GB HBM3")["fuseplan"] == "1.50"
    assert "results/models.nvidia-h100.gpu.svg" in text
    assert "Rows are of several kinds" not in text


def test_rows_of_the_first_version_stand_beside_those_that_were_measured_since() -> None:
    older = {**row(commit="1111111"), "sides": {**row()["sides"], "reduce-overhead": side(2.2), "fuseplan": side(1.0)}}
    first = file_of({"bert 32x128": older, "vit-b 64": row(), "swin-t 64": older})
    now = file_of({"bert 32x128": row(), "vit-b 64": row(), "swin-t 64": {"failed": "no time was left for it"}})
    text = "\n\n".join(whole_models.parts(now, {}, {}, first))
    found = cells(text, "bert 32x128", "### Since the first version")
    assert [found[name] for name in ("then", "tuned then", "tuned now", "now / then", "over torch's", "commit then")] == [
        "2.20", "1.00", "1.25", "1.250", "1.375", "1111111"
    ]  # fmt: skip
    assert "Not to be compared, or not measured again: vit-b 64, swin-t 64." in text


def test_a_side_without_a_time_says_why() -> None:
    text = page(
        {"bert 32x128": row(sides={**row()["sides"], "eager": {"failed": "error: RuntimeError: no | such op"}})}
    )
    found = cells(text, "bert 32x128")
    assert found["max-autotune-no-cudagraphs"] == "not compiled within 240 s"
    assert found["max-autotune"] == "not tried"
    assert found["eager"] == "error"
    assert "- bert 32x128, max-autotune-no-cudagraphs: not compiled within 240 s\n" in text
    assert "- bert 32x128, eager: error: RuntimeError: no | such op\n" in text
    assert "tuned plain" not in found, "no row has it"


def test_the_best_of_torch_the_verdict_and_the_commit_stand_in_each_row() -> None:
    text = page(
        {"bert 32x128": row(), "swin-t 64": row(library="timm", commit="1234567", best_torch="eager", verdict="same")}
    )
    assert [cells(text, "bert 32x128")[name] for name in ("best", "verdict", "commit", "fuseplan", "faster")] == [
        "reduce-overhead", "faster", "abcdef0", "1.25", "1.60 ×"
    ]  # fmt: skip
    assert [cells(text, "swin-t 64")[name] for name in ("best", "verdict", "commit")] == ["eager", "same", "1234567"]
    assert "unmodified models of timm and transformers" in text


def test_what_was_not_measured_is_said_and_nothing_is_made_up() -> None:
    text = page({"bert 32x128": row(), "vit-b 64": {"failed": "no time was left for it"}})
    assert set(cells(text, "vit-b 64").values()) == {"vit-b 64", "-", "- ×"}
    assert "- vit-b 64: no time was left for it" in text
    assert "Not measured yet: gpt2 8x1024, " in text
    assert "bert 32x128," not in text.partition("Not measured yet:")[2].splitlines()[0]
    assert "None was measured: `scripts/bench models --against CHECKOUT`." in text
    assert text.endswith("## Sizes that a seed drew\n\nNone were measured: `scripts/bench drawn`.")
    assert "Noise is above" not in text
    assert page({}).startswith("## Whole models")


def test_noise_above_two_percent_has_its_reason() -> None:
    older = {key: value for key, value in row(noise=0.072).items() if key != "noise_of"}
    why = "reduce-overhead is 3.1% from itself after 95 rounds, 60 s of them more than usual"
    text = page({"bert 1x128": row(noise=0.031, noisy=why), "vit-b 64": older, "swin-t 64": row(noise=0.02)})
    listed = text.partition("Noise is above 2% in:\n\n")[2].partition("\n\n")[0].splitlines()
    assert listed == [
        f"- bert 1x128: {why}",
        "- vit-b 64: torch.compile is 7.2% from itself after 31 rounds, of a time when no row got more",
    ]
    assert "(in 1 older rows, how far torch.compile was)" in text


def test_an_earlier_version_is_compared_by_the_side_of_torch_that_both_have() -> None:
    then = {"sides": {"torch.compile": side(3.2), "reduce-overhead": side(2.2), "fuseplan tuned": side(1.65)}}
    then |= {"commit": "4a9fd47aaaa", "best_tuned": "fuseplan tuned", "noise": 0.01}
    failed = {"commit": "4a9fd47aaaa", "failed": "its benchmark ended with 2, at: it does not know this model, perhaps"}
    text = page({"bert 32x128": row(against=then), "swin-t 64": row(against=failed), "vit-b 64": row()})
    found = cells(text, "bert 32x128", "### Beside an earlier version")
    # here 1.25 of 2.0, there 1.65 of 2.2
    assert [found[name] for name in ("of torch's", "then", "tuned then", "tuned now", "now / then", "commit then")] == [
        "reduce-overhead", "2.20", "1.65", "1.25", f"{1.25 / 2.0 / (1.65 / 2.2):.3f}", "4a9fd47"
    ]  # fmt: skip
    assert "- swin-t 64, 4a9fd47: its benchmark ended with 2" in text
    assert "| vit-b 64 |" not in text.partition("### Beside an earlier version")[2].partition("## Sizes")[0]


def test_drawn_sizes_stand_beside_the_row_of_their_kind_with_what_is_left_of_its_gain() -> None:
    models = {
        "gpt2 8x1024": row(speedup=1.2),
        "t5-small 16x512": row(speedup=1.5),
        "gpt2 8x1024 train": row(speedup=1.1),
    }
    rows = {"t5-small 7x360": row(speedup=1.5**0.5), "gpt2 3x200 train": row(speedup=1.0), "swin-t 20": row()}
    text = page(models, {"seed": 77, "models": rows})
    assert "a size that the seed 77 drew" in text
    t5, gpt2, swin = (cells(text, name, "## Sizes that a seed drew") for name in rows)
    assert (t5["of its kind"], t5["share of the gain"]) == ("t5-small 16x512", "50%")
    assert (gpt2["of its kind"], gpt2["share of the gain"]) == ("gpt2 8x1024 train", "0%")
    assert (swin["of its kind"], swin["share of the gain"]) == ("-", "-")


# where time goes, and what ways gain


def gain(ratio: float) -> dict[str, Any]:
    return {"ratio": ratio, "low": ratio - 0.01, "high": ratio + 0.01, "beyond noise": ratio > 1.02}


def test_a_step_is_parted_by_kinds_of_groups() -> None:
    groups = [
        {"what": "addmm", "us": 500.0, "least_us": 400.0},
        {"what": "_scaled_dot_product_flash_attention", "us": 200.0, "least_us": 50.0},
        {"what": "2 add, native_layer_norm", "us": 250.0, "least_us": 125.0},
    ]
    profile = {"device_us": 1000.0, "gap_us": 375.0, "unattributed_us": 50.0, "gaps": groups}
    carved = {"a": {"time": gain(0.98), "predicted": 0.97}, "b": {"time": gain(0.95), "predicted": 0.9}}
    program = {"profile": profile, "races": {"cudagraph": {"gains": carved}}}
    models = {"small": {"commit": "abc", "programs": [program]}, "failed": {"programs": [{"failed": "no profile"}]}}
    told = list(gaps.parts({"models": models}, {}, {}, {}))
    row = "| small | 1.00 | 37.5% | 5.0% | 50.0%, 80% | 20.0%, 25% | - | 25.0%, 50% | cudagraph 1.053 (1.111) | abc |"
    assert row in told[2]
    assert "failed" not in told[2]
    assert told[-1] == "Not measured yet."


def test_each_way_has_a_line() -> None:
    program = {"noise": 0.004, "gains": {"matmul padded": gain(0.8), "convolution patches": gain(1.25)}}
    file = {
        "environment": MACHINE,
        "results": {"models": {"small": {"commit": "abc", "programs": [program]}}},
    }
    told = list(gaps.parts({}, file, {}, {}))
    assert told[2] == "Not measured yet."
    assert "on an Some GPU. Above 1" in told[4]
    assert told[5].splitlines()[2:] == [
        "| convolution patches | small | 0.800 | 0.794 to 0.806 | 0.4% | abc |",
        "| matmul padded | small | 1.250 | 1.235 to 1.266 | 0.4% | abc |",
    ]


def test_our_own_kernels_stand_beside_the_library_s() -> None:
    row = {"ours_us": 100.4, "library_us": 200.0, "of the library": 0.5, "times the least": 2.5}
    file = {"commit": "abc", "environment": MACHINE, "results": {"small": {"together": {"forward": row}}}}
    ratios = {"ours": 1.5, "ours at least": 1.0, "with sums": 1.25, "with sums at least": 0.5}
    matmuls = {"commit": "def", "environment": MACHINE, "results": {"by rows": {"8": ratios}}}
    told = list(gaps.parts({}, {}, file, matmuls))
    assert told[-3].splitlines()[2:] == ["| small | forward | 100 | 200 | 2.00 | 2.50 | abc |"]
    assert told[-2].count("Some GPU") == 1
    assert told[-1].splitlines()[2:] == ["| 8 | 1.50 | 1.00 | 1.25 | 0.50 | def |"]
