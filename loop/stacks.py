"""Stacks: what a sampling profiler saw, folded to one line per stack, as shares of functions and as a flame graph.

A folded line is `frame;frame;frame count`, the outermost frame first (Brendan Gregg's format, which py-spy writes).
"""

import html
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from loop.record import Record

WIDTH_PX, ROW_PX = 1200.0, 17
MIN_PX = 0.5
"""Narrower frames are left out of the picture."""
CHAR_PX = 6.5
COLOURS = ("#e5723c", "#e8893f", "#eba047", "#efb552", "#dd6b3a", "#f0c35e")

Stacks = Counter[tuple[str, ...]]


class FunctionRow(Record):
    """One function over all samples of a process."""

    function: str
    self_samples: int
    """It was the innermost."""
    total_samples: int
    """It was on the stack; once per sample, however often it calls itself."""
    self_pct: float
    total_pct: float


def read_stacks(text: str) -> Stacks:
    """Stack → samples. Lines that are no folded stack are left out."""
    stacks: Stacks = Counter()
    for line in text.splitlines():
        frames, _, number = line.rstrip().rpartition(" ")
        if frames and number.isdigit():
            stacks[tuple(frames.split(";"))] += int(number)
    return stacks


def rank_functions(stacks: Stacks) -> tuple[FunctionRow, ...]:
    """By self time, then total. Self shares sum to 100."""
    own: Counter[str] = Counter()
    total: Counter[str] = Counter()
    for stack, number in stacks.items():
        own[stack[-1]] += number
        for function in set(stack):
            total[function] += number
    samples = sum(stacks.values())
    rows = [
        FunctionRow(
            function=name,
            self_samples=own[name],
            total_samples=total[name],
            self_pct=100.0 * own[name] / samples,
            total_pct=100.0 * total[name] / samples,
        )
        for name in total
    ]
    return tuple(sorted(rows, key=lambda row: (-row.self_samples, -row.total_samples, row.function)))


@dataclass
class _Frame:
    name: str
    samples: int = 0
    children: dict[str, "_Frame"] = field(default_factory=dict)


def draw_flames(stacks: Stacks, title: str) -> str:
    """An SVG without scripts: width is time, the root below, hovering tells name and share."""
    root, depth = _Frame(title), max((len(stack) for stack in stacks), default=0) + 1
    for stack, number in sorted(stacks.items()):
        at = root
        at.samples += number
        for name in stack:
            at = at.children.setdefault(name, _Frame(name))
            at.samples += number
    height = (depth + 1) * ROW_PX
    boxes = "\n".join(_boxes(root, 0.0, 0, root.samples, height))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH_PX:g}" height="{height}" font-family="monospace" '
        f'font-size="11">\n<title>{html.escape(title)}</title>\n{boxes}\n</svg>\n'
    )


def _boxes(frame: _Frame, left: float, row: int, whole: int, height: int) -> Iterable[str]:
    width = WIDTH_PX * frame.samples / whole if whole else 0.0
    if width < MIN_PX:
        return
    top = height - (row + 1) * ROW_PX
    name = frame.name if len(frame.name) * CHAR_PX < width else frame.name[: max(0, int(width / CHAR_PX) - 1)]
    colour = COLOURS[sum(frame.name.encode()) % len(COLOURS)]
    yield (
        f"<g><title>{html.escape(frame.name)}: {frame.samples} samples, {100 * frame.samples / whole:.1f} %</title>"
        f'<rect x="{left:.1f}" y="{top}" width="{width:.1f}" height="{ROW_PX - 1}" fill="{colour}"/>'
        f'<text x="{left + 2:.1f}" y="{top + 12}">{html.escape(name)}</text></g>'
    )
    for child in _by_name(frame):
        yield from _boxes(child, left, row + 1, whole, height)
        left += WIDTH_PX * child.samples / whole


def _by_name(frame: _Frame) -> Iterator[_Frame]:
    yield from sorted(frame.children.values(), key=lambda child: child.name)
