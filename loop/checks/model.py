"""The model's files are all there and whole."""

from collections.abc import Iterator
from typing import ClassVar

from loop.checkpoint import architecture, find_gaps, weight_files
from loop.checks import Check, Finding, Setup, Stage, gib
from loop.host import hash_model
from loop.wording import count


class Model(Check):
    """Config, tokenizer, and every shard that the index names, none of them cut off."""

    stage: ClassVar[Stage] = "workspace"

    def find(self, setup: Setup) -> Iterator[Finding]:
        """Reads headers only; the hash reads what a round's own does."""
        model = setup.model
        action = "copy the checkpoint again, whole"
        try:
            gaps = list(find_gaps(model))
            kind = architecture(model)
        except (OSError, ValueError) as problem:
            yield self.unfit(f"{model}: a file of it cannot be read: {problem}", action)
            return
        if gaps:
            more = f" (and {len(gaps) - 1} more)" if len(gaps) > 1 else ""
            yield self.unfit(f"{model}: {gaps[0]}{more}", action)
            return
        files = weight_files(model)
        size = gib(sum(path.stat().st_size for path in files))
        yield self.ok(f"{kind}, {size} of weights in {count(len(files), 'file')}, sha256 {hash_model(model)[:16]}")
