"""Every session must have been given the same prompts: the same number of prompt tokens in every step."""

from typing import ClassVar

from loop.gates import Bracket, Gate, GateResult
from loop.session import Session
from loop.wording import count


class SamePrompts(Gate):
    """Holds the servers' counts against each other, step by step.

    A client that sends token ids has proven each count itself; where the server's chat template makes the prompt, this
    is what notices a template or a truncation that makes the work smaller. Steps with failures are left to `success`.
    """

    name: ClassVar[str] = "same_prompts"
    needs_timing: ClassVar[bool] = False

    def check(self, bracket: Bracket) -> GateResult:
        """The first A is the measure of the others."""
        sessions = (*bracket.arm("A"), *bracket.arm("B"))
        expected = _prompt_tokens(bracket, sessions[0]) if sessions else {}
        for session in sessions[1:]:
            for step, found in _prompt_tokens(bracket, session).items():
                if found == expected.get(step, found):
                    continue
                text = f"{step} of {session.label} had {count(found, 'prompt token')}; {expected[step]} in A"
                if session.arm == "A":
                    return self.uninformative(text, reason="env_changed")
                return self.refused(text, reason="prompts_differ")
        return self.passed(f"{count(len(expected), 'step')} with the same prompts in every session")


def _prompt_tokens(bracket: Bracket, session: Session) -> dict[str, int]:
    """Step → prompt tokens as the server counted them, of the steps in which every request succeeded.

    Without canaries: their texts differ between sessions, and a chat template may make a token more of one.
    """
    return {
        m.step.name: sum(reply.num_prompt_tokens or 0 for reply in bracket.replies_in(m) if not reply.is_canary)
        for m in session.measurements
        if not m.failures
    }
