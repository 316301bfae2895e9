"""What a person sees while programs are tuned, and what a log gets."""

from __future__ import annotations

import io

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as Rich

from fuseplan.tuning.progress import Bar, Lines


def screen() -> tuple[Bar, Rich, io.StringIO]:
    text = io.StringIO()
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[what]}", markup=False),
    )  # fmt: skip
    shown = Rich(*columns, console=Console(file=text, width=200), auto_refresh=False)
    return Bar(shown), shown, text


def lines(shown: Rich) -> list[str]:
    console = Console(file=io.StringIO(), width=200)
    console.print(shown.make_tasks_table(shown.tasks))
    file = console.file
    assert isinstance(file, io.StringIO)
    return [" ".join(line.split()) for line in file.getvalue().splitlines()]


def test_a_bar_for_all_and_a_line_for_each_device() -> None:
    bar, shown, text = screen()
    bar.begin(3)
    bar.left(150)
    first, second = bar.on("cuda:0"), bar.on("cuda:1")
    first.stage("gpt2, plain", "timing regions", 8)
    second.stage("[bold]bert", "racing\x1b whole plans", 1)
    first.advance()
    first.best("best so far 412 µs against 530 µs, at most 1 min 3 s left")
    whole, one, other = lines(shown)
    assert whole.startswith("programs tuned")
    assert whole.endswith("0/3 about 2 min 30 s left")
    assert one.startswith("cuda:0 gpt2, plain: timing regions")
    assert one.endswith("1/8 best so far 412 µs against 530 µs, at most 1 min 3 s left")
    assert other.startswith("cuda:1 [bold]bert: racing whole plans")
    first.stage("gpt2, plain", "racing whole plans", 1)
    assert "best so far 412 µs" in lines(shown)[2]  # what is known of a program outlives its stage
    first.end("gpt2, plain: tuned, 412.0 µs against 530.0 µs of inductor")
    assert text.getvalue() == "gpt2, plain: tuned, 412.0 µs against 530.0 µs of inductor\n"
    assert len(lines(shown)) == 2
    assert "1/3" in lines(shown)[0]
    first.stage("next", "capturing", 1)
    assert "412" not in " ".join(lines(shown))


def test_a_single_device_needs_no_name() -> None:
    bar, shown, _ = screen()
    bar.stage("gelu", "capturing", 1)
    bar.best("best so far 3 µs")
    bar.advance("an error\n")
    (line,) = lines(shown)
    assert line.startswith("gelu: capturing")
    assert line.endswith("1/1 an error")
    bar.end("done")
    assert lines(shown) == []


def test_what_a_stage_still_waits_for_is_named_when_little_is_left() -> None:
    bar, shown, _ = screen()
    bar.stage("gelu", "checking plans", 3)
    bar.waits(["inductor", "eager", "[red]greedy"])
    assert "eager" not in lines(shown)[0]
    bar.waits(["[red]greedy"])
    assert lines(shown)[0].startswith("gelu: checking plans: [red]greedy")
    bar.waits([])
    assert "greedy" not in lines(shown)[0]


def test_a_log_gets_each_stage_once() -> None:
    said: list[str] = []
    log = Lines(said.append)
    log.begin(1)
    log.left(0)
    for _ in range(3):
        log.on("cuda:0").stage("gelu", "timing regions", 4)
    log.note("gelu: inductor is out:\nwrong")
    log.end("gelu: default")
    assert said == ["1 program to tune", "gelu: timing regions", "gelu: inductor is out: wrong", "gelu: default"]
