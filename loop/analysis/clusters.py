"""Clusters: layers that do the same, told by their kernels and not by the model's config."""

from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np

from loop.analysis.capture import Capture
from loop.analysis.layers import kind_of_layer
from loop.analysis.signatures import Signature, distance, sign
from loop.record import Record

MAX_DISTANCE = 0.10
"""Between a layer's signature and that of its cluster's first."""
MAX_SLOWER = 1.25
"""Layers alike in kernels but slower than this times their cluster's fastest are a cluster of their own. Slower by the
sum of their kernels: walls are the host's where it launches too late."""


class Layer(Record):
    """One layer in one forward pass. Times in nanoseconds."""

    passed: int
    stage: str
    number: int
    kind: str
    rows: tuple[int, ...]
    """Its work, by start."""
    start_ns: int
    wall_ns: int
    sum_ns: int


class Cluster(Record):
    """Layers of one stage that do the same."""

    id: str
    """`decode/0`: the stage, then by size."""
    stage: str
    kind: str
    numbers: tuple[int, ...]
    """Which layers of the model."""
    layers: tuple[Layer, ...]
    """Of every pass of the stage."""
    signature: Signature

    @property
    def exemplar(self) -> Layer:
        """The layer with the signature, of median wall."""
        typical = sorted(self.layers, key=lambda layer: (layer.wall_ns, layer.passed, layer.number))
        return typical[len(typical) // 2]


def list_layers(capture: Capture) -> tuple[Layer, ...]:
    """Every layer of every pass, in order."""
    work, layers = capture.work, capture.layers
    grouped: dict[tuple[int, int], list[int]] = defaultdict(list)
    for row in np.flatnonzero(layers.number >= 0).tolist():
        grouped[int(work.passed[row]), int(layers.number[row])].append(row)
    found = []
    for (passed, number), rows in sorted(grouped.items()):
        start = int(work.start_ns[rows].min())
        found.append(
            Layer(
                passed=passed,
                stage=work.stage[rows[0]],
                number=number,
                kind=kind_of_layer(work, rows, layers.kind.get((passed, number))),
                rows=tuple(rows),
                start_ns=start,
                wall_ns=int(work.end_ns[rows].max()) - start,
                sum_ns=int(work.time_ns[rows].sum()),
            )
        )
    return tuple(found)


def find_clusters(capture: Capture, layers: Sequence[Layer]) -> tuple[Cluster, ...]:
    """The clusters of every stage, the largest first. Each layer of the model is in one, by what it mostly does."""
    found: list[Cluster] = []
    for stage in dict.fromkeys(layer.stage for layer in layers):
        by_number: dict[int, list[Layer]] = defaultdict(list)
        for layer in layers:
            if layer.stage == stage:
                by_number[layer.number].append(layer)
        groups = _group_by_signature(capture, by_number)
        pieces = [(s, piece) for s, numbers in groups.items() for piece in _split_by_time(by_number, numbers)]
        pieces.sort(key=lambda item: (-len(item[1]), item[1]))
        for place, (signature, numbers) in enumerate(pieces):
            members = [layer for number in numbers for layer in by_number[number]]
            kind = Counter(layer.kind for layer in members).most_common(1)[0][0]
            found.append(
                Cluster(
                    id=f"{stage}/{place}",
                    stage=stage,
                    kind=kind,
                    numbers=tuple(numbers),
                    layers=tuple(members),
                    signature=signature,
                )
            )
    return tuple(found)


def _group_by_signature(capture: Capture, by_number: dict[int, list[Layer]]) -> dict[Signature, list[int]]:
    """Signature of a group's first → the layers within MAX_DISTANCE of it, the commonest signatures first."""
    usual = {
        number: Counter(sign(capture.work, layer.rows) for layer in layers).most_common(1)[0][0]
        for number, layers in by_number.items()
    }
    groups: dict[Signature, list[int]] = {}
    nearest: dict[Signature, Signature] = {}
    for signature, _ in Counter(usual[number] for number in sorted(usual)).most_common():
        close = [(distance(signature, other), place) for place, other in enumerate(groups)]
        best = min(close, default=(1.0, 0))
        nearest[signature] = list(groups)[best[1]] if best[0] <= MAX_DISTANCE else signature
        groups.setdefault(nearest[signature], [])
    for number in sorted(usual):
        groups[nearest[usual[number]]].append(number)
    return groups


def _split_by_time(by_number: dict[int, list[Layer]], numbers: Sequence[int]) -> list[list[int]]:
    """The layers of a group, those apart that take much longer for the same kernels."""
    times = {number: float(np.median([layer.sum_ns for layer in by_number[number]])) for number in numbers}
    pieces: list[list[int]] = []
    fastest = 0.0
    for number in sorted(numbers, key=lambda n: (times[n], n)):
        if not pieces or times[number] > MAX_SLOWER * fastest:
            pieces.append([])
            fastest = times[number]
        pieces[-1].append(number)
    return [sorted(piece) for piece in pieces]
