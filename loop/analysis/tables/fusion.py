"""Which kernels could be one, and which already are."""

from collections import Counter
from collections.abc import Sequence
from typing import ClassVar

from loop.analysis.capture import Capture
from loop.analysis.fusion import Sequences, find_sequences, properties
from loop.analysis.names import simplify
from loop.analysis.tables import NO_KERNELS, Advice, Table, share_pct
from loop.record import Record

LIKELY_PCT = 3.0
"""Share of a stage from which a pattern is worth work."""


class FusionRow(Record):
    """One pattern of the catalogue in one stage."""

    pattern: str
    """Its name in loop/analysis/fusion_patterns.toml."""
    status: str
    """split: the parts run one after the other; in place: as one kernel; partly: both occur."""
    state: str
    """Of the fused kernel in SGLang: exists; similar, for another model or layout; to write."""
    stage: str
    """Of the passes."""
    confidence: str
    """high: most layers or passes have it and it takes 3 % of the stage; medium: one of both; low: neither."""
    related_us: float
    """Of the kernels found: the split parts, or the fused ones."""
    share_pct: float
    """Of the stage's sum of durations."""
    ceiling_us: float
    """What fusing could save at most: all parts but the longest of each sequence, and the gaps between the parts."""
    times: int
    """How often it was found."""
    evidence_kernels: str
    """What was found, by short names."""
    current_location: str | None
    """Who launches the first part."""
    candidate_path: str
    """Where the fused kernel is or would go, below sglang/."""
    source: str
    """Where this is known from."""
    rationale: str
    """Why one kernel should be faster."""


class Fusion(Table):
    """Rows: split ones by what could be saved, then those in place."""

    name: ClassVar[str] = "fusion"
    title: ClassVar[str] = "fusion patterns"
    row: ClassVar[type[Record]] = FusionRow
    brief: ClassVar[tuple[str, ...]] = (
        "status",
        "state",
        "stage",
        "pattern",
        "times",
        "related_us",
        "share_pct",
        "ceiling_us",
    )

    min_share_pct: float = 0.25
    """Patterns below it are left out."""

    def rows(self, capture: Capture) -> tuple[FusionRow, ...]:
        """Patterns that this model and this way to serve it can have, and that the trace shows."""
        if not capture.work.on_device:
            return ()
        totals: Counter[str] = Counter()
        for row, stage in enumerate(capture.work.stage):
            totals[stage] += int(capture.work.time_ns[row])
        found = [make_row(capture, sequences, totals[sequences.stage]) for sequences in find_sequences(capture)]
        kept = [row for row in found if row.share_pct >= self.min_share_pct]
        return tuple(
            sorted(kept, key=lambda r: (r.status == "in place", -r.ceiling_us, -r.related_us, r.pattern, r.stage))
        )

    def advise(self, capture: Capture, rows: Sequence[FusionRow]) -> Advice:
        """The split pattern with most to save in the stage that launches graphs, else in any."""
        split = [row for row in rows if row.status != "in place"]
        if not split:
            return Advice(
                look_first=f"every fusion that the catalogue knows for this model is in place: {len(rows)}",
                next_edit="fusion has nothing more to give here: see `kernels` and `idle_gaps`",
            )
        stages = {capture.work.stage[row] for row in range(len(capture.work)) if capture.work.in_graph[row]}
        top = next((row for row in split if row.stage in stages), split[0])
        where = {"exists": "switch to", "similar": "adapt"}.get(top.state, "write it in")
        return Advice(
            look_first=f"{top.pattern} in {top.stage}: {top.times} times {top.evidence_kernels}, "
            f"{top.related_us:.0f} µs ({top.share_pct:.1f} %); as one kernel {top.ceiling_us:.0f} µs less at most",
            next_edit=f"{where} {top.candidate_path} ({top.source})",
        )

    def why_empty(self, capture: Capture) -> str:
        """Nothing known was found."""
        if not capture.work.on_device:
            return NO_KERNELS
        seen = ", ".join(sorted(properties(capture))) or "one rank, dense, not quantized"
        return f"no pattern of the catalogue is in the trace (looked for what can occur with: {seen})"


def make_row(capture: Capture, found: Sequences, stage_ns: int) -> FusionRow:
    """One pattern in one stage."""
    work, pattern = capture.work, found.pattern
    split = [row for rows in found.rows for row in rows]
    rows = split or list(found.active_rows)
    time = int(work.time_ns[rows].sum())
    share = share_pct(time, stage_ns)
    passes = len({int(work.passed[row]) for row in rows})
    repeated = len(found.rows or found.active_rows) >= 2 * passes
    ceiling = sum(_ceiling_ns(capture, rows) for rows in found.rows)
    shown = found.rows[0] if found.rows else found.active_rows[:1]
    grade = (share >= LIKELY_PCT) + repeated
    return FusionRow(
        pattern=pattern.name,
        status="in place" if not split else "partly" if found.active_rows else "split",
        state=pattern.state,
        stage=found.stage,
        confidence=("low", "medium", "high")[grade],
        related_us=time / 1000,
        share_pct=share,
        ceiling_us=ceiling / 1000,
        times=len(found.rows or found.active_rows),
        evidence_kernels=" → ".join(simplify(work.name[row]) for row in shown),
        current_location=work.origin[shown[0]].location,
        candidate_path=pattern.path,
        source=pattern.source,
        rationale=pattern.why,
    )


def _ceiling_ns(capture: Capture, rows: Sequence[int]) -> int:
    """What one sequence takes beyond its longest part. Gaps count only inside graphs: elsewhere they are the host's."""
    work = capture.work
    times = [int(work.time_ns[row]) for row in rows]
    if all(work.in_graph[row] for row in rows):
        whole = int(work.end_ns[list(rows)].max() - work.start_ns[rows[0]])
        return max(0, whole - max(times))
    return sum(times) - max(times)
