"""A copy of a checkout with links that give its folders their package names: mutants are made there, and tests run there."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

_SITE = """
import builtins, sys
sys.meta_path[:] = [finder for finder in sys.meta_path if getattr(finder, "__name__", "") != "_EditableFinder"]
builtins.__reached__ = lambda number: None
"""
"""Whoever runs in the copy, workers included, finds the copy's package and not the one that is installed. What processes that tests
start reach is not known."""


def paths_of(checkout: Path, site: Path) -> list[str]:
    """What leads Python to the package of a checkout, whichever is installed; a small file of it is written to `site`."""
    site.mkdir(parents=True, exist_ok=True)
    (site / "sitecustomize.py").write_text(_SITE)
    run = [sys.executable, "-m", "checks.linked_tree"]
    env = {**os.environ, "PYTHONPATH": "scripts"}
    linked = subprocess.run(run, cwd=checkout, env=env, check=True, capture_output=True, text=True).stdout.strip()
    return [str(site), linked]


def files_of(checkout: Path) -> list[str]:
    """Those that git knows; of a checkout without a history, those of folders and files that are not hidden, but for `build`."""
    if (checkout / ".git").exists():
        listed = ["git", "-C", str(checkout), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        names = subprocess.run(listed, check=True, capture_output=True, text=True).stdout.split("\0")
        return [name for name in names if name and (checkout / name).is_file()]
    shown = [one for one in checkout.iterdir() if not one.name.startswith(".") and one.name != "build"]
    every = [path for one in shown for path in ([one] if one.is_file() else one.rglob("*"))]
    return [str(path.relative_to(checkout)) for path in every if path.is_file() and path.suffix != ".pyc"]


class Tree:
    """A copy of the files of a checkout, some of them changed."""

    def __init__(self, source: Path, place: Path, changed: Mapping[str, bytes] | None = None) -> None:
        self.place = place
        for name in files_of(source):
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source / name, place / name)
        for name, content in (changed or {}).items():
            (place / name).write_bytes(content)
        fits = source / "build" / "fits"
        if fits.is_dir():  # under the hash of what went into them
            shutil.copytree(fits, place / "build" / "fits")
        site = place / "build" / "site"
        path = os.pathsep.join([*paths_of(place, site), str(place / "scripts")])
        shutil.copy2(Path(__file__).with_name("plugin.py"), site / "reached_plugin.py")
        self.env = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}

    def pytest(
        self,
        arguments: Sequence[str],
        env: dict[str, str] | None = None,
        cpu_s: int | None = None,
        wall_s: float | None = None,
    ) -> tuple[int, str]:
        """Run tests; return the exit status, or -9 where they took too long, and the end of what they printed.

        `cpu_s` bounds the time of the CPU, so that a busy machine makes no difference; `wall_s` whatever hangs without any.
        """

        def limit() -> None:
            os.setsid()
            if cpu_s is not None:
                resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s))

        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--hypothesis-seed=0", *arguments]
        process = subprocess.Popen(
            command, cwd=self.place, env={**self.env, **(env or {})}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, preexec_fn=limit, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            said, _ = process.communicate(timeout=wall_s)
        except subprocess.TimeoutExpired:
            said = ""
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        return process.returncode, said[-2000:]
