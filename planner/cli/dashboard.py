"""`fuseplan dashboard`: the tuning database as pages in a browser, served or as one file."""

from __future__ import annotations

from pathlib import Path

import click

from fuseplan.cli.options import tell


@click.command(
    epilog="Examples: fuseplan dashboard --open; fuseplan dashboard --db a.db --db b.db; fuseplan dashboard --export report.html"
)
@click.argument("given", nargs=-1, type=click.Path(path_type=Path), metavar="[FILE]…")
@click.option(
    "--db", "files", multiple=True, type=click.Path(path_type=Path),
    help="A database to show; more than one can be compared. Without it, FUSEPLAN_DB or the cache's.",
)  # fmt: skip
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8765, show_default=True, help="0 takes any that is free."
)
@click.option(
    "--host", default="127.0.0.1", show_default=True,
    help="Where to listen. Elsewhere than on this machine alone, a token is asked for, which the printed link holds.",
)  # fmt: skip
@click.option("--token", envvar="FUSEPLAN_DASHBOARD_TOKEN", help="The token to ask for, instead of one made here.")
@click.option(
    "--allow-host", "names", multiple=True, metavar="NAME", help="Another name of this machine, in the Host header."
)
@click.option("--open", "browse", is_flag=True, help="Open it in a browser.")
@click.option(
    "--export", type=click.Path(path_type=Path), metavar="FILE", help="Write all of it into one HTML file instead."
)
@click.option("--json", "as_json", is_flag=True, help="Print where it is, or what was written, as JSON.")
def dashboard(
    given: tuple[Path, ...], files: tuple[Path, ...], port: int, host: str, token: str | None, names: tuple[str, ...], browse: bool, export: Path | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Show whether tuning paid, where, and why. It only reads, and answers this machine alone unless told otherwise.

    FILE is a database to show, as with --db.
    """
    from fuseplan.tuning_db.dashboard import serve

    def say(address: str) -> None:
        tell({"url": address}, lambda: f"The dashboard is at {address} (Ctrl-C ends it)", as_json, indent=None)

    done = serve.dashboard(
        (*given, *files) or None, port=port, host=host, token=token or None, names=names, open=browse, export=export, tell=say
    )  # fmt: skip
    if done is not None:
        fields = {"path": str(done.path), "bytes": done.bytes, "sections": done.sections}
        text = f"{done.path}: {done.bytes / 2**20:.1f} MiB, {done.sections} pages"
        tell(fields, lambda: text, as_json, indent=None)
