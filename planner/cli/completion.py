"""`fuseplan completion`: what a shell needs in order to complete verbs, options, and keys of plans."""

from __future__ import annotations

import json

import click

from fuseplan.cli.options import as_json, examples

_EPILOG = examples(
    'eval "$(fuseplan completion bash)"                       in ~/.bashrc',
    'eval "$(fuseplan completion zsh)"                        in ~/.zshrc',
    "fuseplan completion fish > ~/.config/fish/completions/fuseplan.fish",
)


@click.command(epilog=_EPILOG)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@as_json
def completion(shell: str, as_json: bool) -> None:
    """Print what makes a shell complete verbs, options, and the keys and names of stored plans."""
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None  # click has all three
    verbs = click.get_current_context().find_root().command
    complete = kind(verbs, {}, "fuseplan", "_FUSEPLAN_COMPLETE")
    script = (
        complete.source_template % complete.source_vars()
    )  # without source(), which runs the shell to ask its version
    click.echo(json.dumps({"shell": shell, "script": script}, indent=2) if as_json else script)
