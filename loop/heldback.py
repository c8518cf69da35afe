"""Held-back prompts: what a confirmation asks beside the visible correctness prompts, and nobody has seen before it.

    seed = HMAC-SHA256(root, round id)    root: LOOP_HELDOUT_SEED, or the round's own secret

The round commits to the seed when it opens and reveals it when it closes; the root it never shows. So a held-back set
is used once, and whoever has the record can make it again.
"""

import hashlib
import hmac
from collections import Counter
from collections.abc import Mapping, Sequence

from loop.errors import InputError
from loop.prompts import CATEGORIES, Prompt, correctness
from loop.prompts.checks import Scale
from loop.record import Record

ROOT = "LOOP_HELDOUT_SEED"
"""The environment variable with the root. No server may ever see it."""
MIN_ROOT_LENGTH = 16
"""Seeds are revealed: a root that is short or a word could be guessed from one."""
SHARE = 4
"""One held-back prompt for so many visible ones, and one at least of each category."""
DRAWN = 8
"""Prompts drawn for each that is needed."""


class Heldback(Record):
    """What a round shows of its held-back prompts."""

    seed_sha256: str
    """Commitment to the seed that they are drawn from."""
    seed_hex: str | None = None
    """Revealed when the round closes; what it was derived from is not."""


def derive_seed(environ: Mapping[str, str], secret_hex: str, round_id: str) -> str:
    """The seed of one round in hex; raises InputError for a root that could be guessed."""
    root = environ.get(ROOT, "")
    if root and len(root) < MIN_ROOT_LENGTH:
        raise InputError(
            f"{ROOT} has {len(root)} characters: it could be guessed from the seeds that rounds reveal",
            next="take one from `openssl rand -hex 32` and keep it outside the workspace, or unset it",
        )
    key = root.encode() if root else bytes.fromhex(secret_hex)
    return hmac.new(key, round_id.encode(), hashlib.sha256).hexdigest()


def heldback_counts(visible: Sequence[Prompt]) -> dict[str, int]:
    """Category → how many held-back prompts. A category that no generator knows has none."""
    found = Counter(prompt.category for prompt in visible)
    return {name: max(1, round(found[name] / SHARE)) for name in CATEGORIES if name in found}


def heldback_prompts(visible: Sequence[Prompt], seed: str) -> tuple[Prompt, ...]:
    """Prompts like the visible ones: from their generator, with answers as long. None is visible itself.

    Several are drawn for each that is needed and the long ones left out: who can hold the visible ones can hold these.
    """
    seen = {prompt.text for prompt in visible}
    longest = max((len(text) for text in seen), default=0)
    counts = heldback_counts(visible)
    drawn = correctness(seed, {name: DRAWN * number for name, number in counts.items()}, _scale(visible))
    chosen: list[Prompt] = []
    for name, number in counts.items():
        alike = [p for p in drawn if p.category == name and p.text not in seen and len(p.text) <= longest]
        chosen += alike[:number]
    return tuple(chosen)


def _scale(visible: Sequence[Prompt]) -> Scale:
    """How long the visible prompts' documents and answers are."""
    words = [len(prompt.text.split()) for prompt in visible if prompt.category == "long_context"] or [0]
    return Scale(
        max_new_tokens={prompt.category: prompt.max_new_tokens for prompt in visible},
        min_document_words=min(words),
        max_document_words=max(words),
    )
