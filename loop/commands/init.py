"""`loop init`: a workspace, or a synthetic checkpoint in one."""

from pathlib import Path
from typing import Annotated

import typer


def main(
    directory: Annotated[Path, typer.Argument(help="The workspace; default: here.")] = Path(),
    synthetic: Annotated[
        str | None, typer.Option(help="Generate a checkpoint: `tiny`, or a Qwen3 or Qwen3.5-text config.json.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the generated weights.")] = 0,
    model_dir: Annotated[Path | None, typer.Option(help="Where the checkpoint goes; default: models/NAME.")] = None,
) -> None:
    """Make a workspace, or a synthetic checkpoint in one."""
    from loop import starter
    from loop.errors import InputError

    if directory.exists() and not directory.is_dir():
        raise InputError(f"{directory} is a file", next="name a directory")
    lines = list(starter.init(directory, synthetic=synthetic, seed=seed, model_dir=model_dir))
    print("\n".join(lines or ["everything is there; next: loop plan noop"]))
