"""`loop compare`: two rounds side by side, where that means anything."""

from typing import Annotated

import typer

from loop.commands import AsJson, print_json, read_round


def main(
    first: Annotated[str, typer.Argument(metavar="ROUND", help="A round.")],
    second: Annotated[str, typer.Argument(metavar="ROUND", help="Another, against the same baseline.")],
    as_json: AsJson = False,
) -> None:
    """Hold two rounds' candidates against each other through the baseline that both were measured against."""
    from loop import display
    from loop.contrast import contrast

    one, other = read_round(first), read_round(second)
    found = contrast(one, other)
    if as_json:
        print_json([item.document() for item in found])
    else:
        display.show_contrast(one, other, found)
