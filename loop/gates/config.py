"""The candidate's resolved configuration may differ from the baseline's only where the bundle says so."""

from typing import Any, ClassVar

from loop.gates import Bracket, Gate, GateResult
from loop.wording import count

MODEL_PATHS = ("model_path", "tokenizer_path")
"""What a model transform changes: where the checkpoint is. What is in it is for the launcher to prove."""


class Config(Gate):
    """Compares the settings both servers reported. Got unasked: refused. Asked and ignored: `no_effect`."""

    name: ClassVar[str] = "config"
    needs_timing: ClassVar[bool] = False

    def check(self, bracket: Bracket) -> GateResult:
        """Every A must agree with the first; then B is held against it."""
        infos = {s.label: s.info for s in bracket.sessions if s.info is not None}
        first = next((infos[s.label] for s in bracket.arm("A") if s.label in infos), None)
        b = next((infos[s.label] for s in bracket.arm("B") if s.label in infos), None)
        if first is None or b is None:
            return self.uninformative("a server did not report its configuration", reason="no_server_info")
        for session in bracket.arm("A"):
            changed = _changes(first, infos.get(session.label, first))
            if changed:
                return self.uninformative(
                    f"the baseline resolved differently in {session.label}: {_list(changed)}", reason="env_changed"
                )
        for session in bracket.arm("B"):
            changed = _changes(b, infos.get(session.label, b))
            if changed:
                return self.refused(
                    f"resolved differently in {session.label}: {_list(changed)}", reason="unasked_config"
                )
        changed = _changes(first, b)
        asked_a, asked_b = bracket.baseline.asked, bracket.candidate.asked
        touched = {name for name in {*asked_a, *asked_b} if asked_a.get(name) != asked_b.get(name)}
        if bracket.baseline.content.transforms != bracket.candidate.content.transforms:
            changed = {name: pair for name, pair in changed.items() if name not in MODEL_PATHS}
        allowed = touched.union(*(bracket.derived.get(name, frozenset()) for name in touched))
        unasked = {name: pair for name, pair in changed.items() if name not in allowed}
        if unasked:
            return self.refused(f"got unasked: {_list(unasked)}", reason="unasked_config")
        ignored = sorted(
            name for name in touched if name in first and name not in changed and asked_b.get(name) is not None
        )
        if ignored and len(ignored) == len(touched):
            same = ", ".join(f"{name} stayed {b[name]!r}" for name in ignored)
            return self.refused(f"asked and ignored: {same}", reason="no_effect")
        return self.passed(
            f"{count(len(changed), 'setting')} changed, as asked for" if changed else "no setting differs"
        )


def _changes(a: dict[str, Any], b: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    return {name: (a.get(name), b.get(name)) for name in sorted({*a, *b}) if a.get(name) != b.get(name)}


def _list(changes: dict[str, tuple[Any, Any]]) -> str:
    return ", ".join(f"{name} {old!r} -> {new!r}" for name, (old, new) in changes.items())
