"""The recipes of docs/fleet.md: their commands are such as fuseplan takes, and each of them tunes every shard once."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import click
import pytest

from checks.project import ROOT
from fuseplan.cli import main

PAGE = (ROOT / "docs" / "fleet.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
SCRIPTS = [text for kind, text in BLOCKS if kind == "bash"]
COMMANDS = [
    found
    for text in (*(text for _, text in BLOCKS), *re.findall(r"`([^`\n]+)`", PAGE))
    for found in re.findall(r"\bfuseplan (?:tune|db \w+) [^`|&;\n]+", text)
]
TOLD = """#!/bin/sh
echo "$0 $*" >> "$TOLD"
"""
RUNS_THE_REST = """#!/bin/sh
while [ "$1" = -n ] || [ "${1#gpu}" != "$1" ]; do shift; done
exec sh -c "$*"
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder to run recipes in, where other programs than fuseplan do next to nothing, and it tells how it was called."""
    (tmp_path / "bin").mkdir()
    for name, text in (("fuseplan", TOLD), ("rsync", TOLD), ("ssh", RUNS_THE_REST), ("srun", RUNS_THE_REST)):
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    (tmp_path / "fleet").mkdir()
    return tmp_path


def run(place: Path, script: str, shell: str = "bash", **variables: str) -> list[list[str]]:
    """How fuseplan was called by a script."""
    told = place / "told"
    path = f"{place / 'bin'}{os.pathsep}{os.environ['PATH']}"
    given = {**os.environ, "PATH": path, "TOLD": str(told), "SLURM_SUBMIT_DIR": str(place), **variables}
    subprocess.run([shell, "-c", script], check=True, cwd=place, env=given, capture_output=True)
    lines = [shlex.split(line) for line in told.read_text().splitlines()]
    told.unlink()
    return [words[1:] for words in lines if words[0].endswith("/fuseplan")]


def option(words: list[str], name: str) -> str:
    return words[words.index(name) + 1]


def tunes_each_once(calls: list[list[str]], count: int) -> None:
    """Each shard with a database of its own."""
    assert sorted(option(words, "--shard") for words in calls) == sorted(f"{i}/{count}" for i in range(1, count + 1))
    assert len({option(words, "--db") for words in calls}) == count
    assert {tuple(words[:2]) for words in calls} == {("tune", "traces/")}


@pytest.mark.parametrize("command", dict.fromkeys(COMMANDS))
def test_a_command_is_one_that_fuseplan_takes(command: str) -> None:
    """With a number in the place of what a shell puts there."""
    text = re.sub(r"\$\w+", "7", command.replace("$shard/$count", "3/16"))
    words = shlex.split(text.rstrip('" ') if text.count('"') % 2 else text)  # what ssh is given ends there
    found: click.Command = main
    context = None
    while isinstance(found, click.Group):
        context = click.Context(found, info_name=words[0], parent=context)
        found = found.commands[words[1]]
        words = words[1:]
    found.make_context(words[0], words[1:], parent=context)


def test_the_page_has_commands_of_all_that_it_tells_of() -> None:
    assert {"--shard", "--dry-run", "--db"} <= {word for command in COMMANDS for word in command.split()}
    assert len(SCRIPTS) == 2


def test_with_ssh_each_machine_tunes_a_shard_and_all_are_merged(place: Path) -> None:
    script = next(script for script in SCRIPTS if "ssh" in script)
    for name in ("shard-1.db", "shard-2.db"):
        (place / name).touch()
    *tuned, merged = run(place, script)
    tunes_each_once(tuned, 4)
    assert merged == ["db", "merge", "shard-1.db", "shard-2.db", "--db", "all.db"]


def test_a_slurm_array_tunes_each_shard_once(place: Path) -> None:
    script = next(script for script in SCRIPTS if "#SBATCH" in script)
    first, last = map(int, re.findall(r"--array=(\d+)-(\d+)", script)[0])
    calls = [call for i in range(first, last + 1) for call in run(place, script, SLURM_ARRAY_TASK_ID=str(i))]
    tunes_each_once(calls, last)
    # tasks that are run again are fewer, and have the shards that they had
    (again,) = run(place, script, SLURM_ARRAY_TASK_ID="7", SLURM_ARRAY_TASK_COUNT="2")
    assert again in calls


def test_a_kubernetes_job_tunes_each_shard_once(place: Path) -> None:
    yaml = pytest.importorskip("yaml")
    (job,) = [yaml.safe_load(text) for kind, text in BLOCKS if kind == "yaml"]
    assert (job["apiVersion"], job["kind"], job["spec"]["completionMode"]) == ("batch/v1", "Job", "Indexed")
    pod: dict[str, Any] = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    shell, flag = container["command"]
    assert flag == "-c"
    (script,) = container["args"]
    assert [one["name"] for one in container["volumeMounts"]] == [one["name"] for one in pod["volumes"]]
    count = job["spec"]["completions"]
    calls = [call for i in range(count) for call in run(place, script, shell, JOB_COMPLETION_INDEX=str(i))]
    tunes_each_once(calls, count)


@pytest.mark.parametrize(("code", "done"), [(0, True), (1, True), (2, False), (137, False)])
def test_a_job_ends_where_another_try_would_end_alike(place: Path, code: int, done: bool) -> None:
    """Where some program could not be tuned; whatever else ends it is a reason to go on."""
    yaml = pytest.importorskip("yaml")
    (job,) = [yaml.safe_load(text) for kind, text in BLOCKS if kind == "yaml"]
    (container,) = job["spec"]["template"]["spec"]["containers"]
    (place / "bin" / "fuseplan").write_text(f"{TOLD}exit {code}\n")
    if done:
        run(place, container["args"][0], JOB_COMPLETION_INDEX="0")
    else:
        with pytest.raises(subprocess.CalledProcessError):
            run(place, container["args"][0], JOB_COMPLETION_INDEX="0")
