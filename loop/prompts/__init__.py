"""Prompts made from a seed: the same bytes on every machine, and other prompts for every other seed.

`correctness` makes the prompts whose answers are compared, `traffic` those that are timed, `canaries` those among them
that no server can have seen, `warmup` those that warm a server up. `read` and `write` keep them in files.
`python -m loop.prompts` makes the files that ship.
"""

from loop.prompts.checks import CATEGORIES, correctness
from loop.prompts.store import Prompt, read, write
from loop.prompts.timed import Shape, canaries, traffic, warmup

__all__ = ["CATEGORIES", "Prompt", "Shape", "canaries", "correctness", "read", "traffic", "warmup", "write"]
