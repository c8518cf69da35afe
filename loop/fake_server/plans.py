"""What one request will be answered, and when: made from the order and the flags, then edited by faults."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from loop.fake_server.orders import Order
from loop.fake_server.vocabulary import Token

Breakage = Literal["die", "hang", "error"]


@dataclass(slots=True)
class Plan:
    """Faults may change any field before the first token; `load_edits` run at the first token."""

    order: Order
    tokens: list[Token]
    finish: dict[str, Any]
    ttft_s: float
    tpot_s: float
    num_cached: int
    chunk_tokens: int
    first_chunk_tokens: int = 1
    break_at: int | None = None
    """Tokens sent when `breakage` happens."""
    breakage: Breakage = "hang"
    http_status: int = 200
    done_marker: bool = True
    empty_chunks: bool = False
    load_edits: list[Callable[["Plan"], None]] = field(default_factory=list)
    """Applied at the first token if another request is running then."""

    def cut(self, finish: dict[str, Any]) -> None:
        """Keep half of the tokens, at least one."""
        del self.tokens[max(1, len(self.tokens) // 2) :]
        self.finish = finish

    def break_half_way(self, breakage: Breakage) -> None:
        """After half of the tokens, which is before the first one where only one is asked."""
        self.break_at = len(self.tokens) // 2
        self.breakage = breakage

    def scale(self, factor: float) -> None:
        """Multiply every delay."""
        self.ttft_s *= factor
        self.tpot_s *= factor


def length_finish(num_tokens: int) -> dict[str, Any]:
    """The finish reason of an answer that ends because it is as long as asked."""
    return {"type": "length", "length": num_tokens}


def abort_finish(message: str) -> dict[str, Any]:
    """The finish reason of an aborted answer."""
    return {"type": "abort", "message": message, "status_code": None, "err_type": None}
