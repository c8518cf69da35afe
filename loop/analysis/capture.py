"""A capture: one rank's trace with all that is derived from it, and the mapping trace that explains its graphs."""

from functools import cached_property

import numpy as np

from loop.analysis.alignment import borrow_origins
from loop.analysis.gaps import Gap, Window, find_gaps, find_windows
from loop.analysis.intervals import covered_ns
from loop.analysis.layers import Layers, find_layers
from loop.analysis.nesting import find_parents
from loop.analysis.passes import Pass, find_passes
from loop.analysis.trace import Ints, Trace
from loop.analysis.work import Work, find_work


class Capture:
    """What the tables are made of. Everything is found once, when it is first asked for."""

    def __init__(self, trace: Trace, mapping: "Capture | None" = None, *, anchor: str | None = None) -> None:
        self.trace = trace
        self.mapping = mapping
        self.anchor = anchor
        """Part of the name of a kernel with which every layer begins, where nothing else tells."""

    @cached_property
    def frame_parents(self) -> Ints:
        """Of each Python frame the one that called it."""
        return find_parents(self.trace.frames)

    @cached_property
    def operator_parents(self) -> Ints:
        """Of each operator the one that called it."""
        return find_parents(self.trace.operators)

    @cached_property
    def passes(self) -> tuple[Pass, ...]:
        """The forward passes, by start."""
        return find_passes(self.trace)

    @cached_property
    def own_work(self) -> Work:
        """The work, as far as this trace alone explains it."""
        return find_work(self.trace, self.frame_parents, self.operator_parents, self.passes)

    @cached_property
    def work(self) -> Work:
        """The work, explained by the mapping trace where this one cannot."""
        return borrow_origins(self.own_work, self.mapping.own_work) if self.mapping else self.own_work

    @cached_property
    def layers(self) -> Layers:
        """Which layer of the model each piece of work belongs to."""
        return find_layers(self.work, self.passes, self.anchor)

    @cached_property
    def windows(self) -> tuple[Window, ...]:
        """What each pass took on the device's clock."""
        return find_windows(self.work, self.passes)

    @cached_property
    def gaps(self) -> tuple[Gap, ...]:
        """When the device idled inside those."""
        return find_gaps(self.work, self.windows)

    @property
    def total_us(self) -> float:
        """The sum of all work."""
        return float(self.work.time_ns.sum()) / 1000

    @cached_property
    def busy_us(self) -> float:
        """How long the device did anything at all."""
        devices = np.unique(self.work.device)
        here = [self.work.device == device for device in devices]
        return sum(covered_ns(self.work.start_ns[h], self.work.end_ns[h]) for h in here) / 1000
