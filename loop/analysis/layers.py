"""Layers: which layer of the model each kernel of a forward pass belongs to."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from loop.analysis.passes import Pass
from loop.analysis.signatures import distance, sign
from loop.analysis.trace import NONE, Ints
from loop.analysis.work import Work

MIN_LAYERS = 2
MIN_CONFIDENCE = 0.7
"""Below it the layers of a pass are not guessed."""
FFN = ("activation", "moe")
"""What every layer has once or in one row, between two residual norms."""


@dataclass(frozen=True, eq=False, slots=True)
class Layers:
    """Of each piece of work its layer, -1 before the first, after the last and where layers cannot be told."""

    number: Ints
    """From 0, in each pass."""
    kind: dict[tuple[int, int], str]
    """(pass, layer) → the class of the layer's module, where the trace names it."""
    method: dict[int, str] = field(default_factory=dict)
    """Pass → `modules` (the stack names them), `mapping` (the mapping trace's does), `anchor` (the kernel that was
    asked for), `rhythm` (norms and feed-forward kernels take turns)."""
    confidence: dict[int, float] = field(default_factory=dict)
    """Pass → 1 where the layers are known, else how alike they are, 0 to 1."""


def find_layers(work: Work, passes: Sequence[Pass], anchor: str | None = None) -> Layers:
    """The layers of every pass; work that belongs to no pass has none."""
    layers = Layers(np.full(len(work), NONE, dtype=np.int64), {})
    for number in range(len(passes)) if passes else (NONE,):
        rows = work.rows(number)
        if not len(rows):
            continue
        if anchor:
            found = [row for row in rows if anchor in work.name[row]]
            _cut(layers, work, number, rows, found, "anchor")
        elif any(_known(work, row) for row in rows):
            _take(layers, work, number, rows)
        else:
            _cut(layers, work, number, rows, _rhythm(work, rows), "rhythm")
    return layers


def _known(work: Work, row: int) -> bool:
    return work.origin[row].layer >= 0 and work.source[row] != "likely"


def _take(layers: Layers, work: Work, number: int, rows: Ints) -> None:
    """The layers whose modules launched the work, as this trace tells them or else the mapping trace.

    One of both, because their rows of frames have nothing to do with each other: with graphs for pieces of a pass
    some kernels are told here and some there.
    """
    known = [work.source[row] for row in rows if _known(work, row)]
    teller = max(("trace", "mapping"), key=known.count)
    told = [work.origin[row].layer if _known(work, row) and work.source[row] == teller else NONE for row in rows]
    order = {layer: place for place, layer in enumerate(sorted({layer for layer in told if layer >= 0}))}
    places = [order.get(layer, NONE) for layer in told]
    first = next(i for i in range(len(places)) if places[i] >= 0)
    last = next(i for i in reversed(range(len(places))) if places[i] >= 0)
    current = NONE
    for i in range(first, last + 1):
        if places[i] >= 0:
            current = places[i]
        elif work.source[rows[i]] != teller or teller == "mapping":  # else: told to be outside of all layers
            places[i] = current
    layers.number[rows] = places
    for row, place in zip(rows, told, strict=True):
        if place >= 0:
            layers.kind.setdefault((number, order[place]), work.origin[row].layer_kind or "")
    layers.method[number] = "modules" if teller == "trace" else "mapping"
    layers.confidence[number] = 1.0


def _rhythm(work: Work, rows: Ints) -> list[int]:
    """Where layers begin: the first norm of the pass, and the first norm after each feed-forward block.

    The norm after the last feed-forward block is the model's own, and ends the last layer.
    """
    begins: list[int] = []
    due = True
    for row in rows.tolist():
        category = work.category[row]
        if category == "norm" and due:
            begins.append(row)
            due = False
        elif category in FFN:
            due = True
    return begins


def _cut(layers: Layers, work: Work, number: int, rows: Ints, begins: list[int], method: str) -> None:
    """Layers from each beginning to the next, if they are enough and enough alike; the last begins the model's end.

    With an anchor of the user's the last beginning is a layer as long as the others.
    """
    places = np.searchsorted(rows, begins).tolist()
    if method == "anchor" and len(places) > 1:
        places.append(min(len(rows), places[-1] + max(1, round(float(np.median(np.diff(places)))))))
    pieces = [rows[first:beyond] for first, beyond in pairwise(places)]
    if len(pieces) < MIN_LAYERS:
        return
    confidence = likeness(work, pieces)
    if confidence < MIN_CONFIDENCE:
        layers.confidence[number] = confidence
        return
    for place, piece in enumerate(pieces):
        layers.number[piece] = place
    layers.method[number], layers.confidence[number] = method, confidence


def likeness(work: Work, pieces: Sequence[Ints]) -> float:
    """How like each piece is to the one most like it, on average: 1 if each has a twin."""
    signatures = [sign(work, piece.tolist()) for piece in pieces]
    counts = {signature: signatures.count(signature) for signature in set(signatures)}
    best = {
        one: 1.0
        if counts[one] > 1
        else 1 - min((distance(one, other) for other in counts if other != one), default=1.0)
        for one in counts
    }
    return sum(best[signature] for signature in signatures) / len(signatures)


def kind_of_layer(work: Work, rows: Sequence[int], module: str | None) -> str:
    """What to call a layer: by its module, else by what it does."""
    if module:
        return module
    seen = {work.category[row] for row in rows}
    attention = (
        "linear attention" if "linear_attention" in seen else "attention" if "attention" in seen else "no attention"
    )
    return f"{attention}, {'MoE' if 'moe' in seen else 'dense'}"
