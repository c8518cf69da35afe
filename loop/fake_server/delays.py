"""How long the server pretends to work."""

import argparse
import math
import os
from random import Random


class Delays:
    """The asked delays times one factor per process and one per request, both log-normal with median 1.

    The session factor is keyed by the seed alone and the request factor by the seed and the request's number, so the
    same seed gives the same delays in the same order of requests.
    """

    def __init__(self, args: argparse.Namespace) -> None:
        self.seed: int = args.seed if args.seed is not None else int.from_bytes(os.urandom(6), "little")
        self._jitter_pct: float = args.jitter_pct
        session_factor = self._factor("session", args.session_jitter_pct)
        self._ttft_s: float = session_factor * args.ttft_ms / 1e3
        self._tpot_s: float = session_factor * args.tpot_ms / 1e3
        self._prefill_s_per_token: float = session_factor * args.prefill_us_per_token / 1e6
        self._batch_slope: float = args.tpot_batch_slope_pct / 100

    def for_request(self, number: int, num_uncached_tokens: int) -> tuple[float, float]:
        """TTFT and TPOT in seconds of the `number`-th request, were it alone."""
        factor = self._factor(f"request:{number}", self._jitter_pct) if self._jitter_pct else 1.0
        return factor * (self._ttft_s + self._prefill_s_per_token * num_uncached_tokens), factor * self._tpot_s

    def load_factor(self, num_running: int) -> float:
        """What the batch costs: the factor on TPOT while `num_running` requests run."""
        return 1.0 + self._batch_slope * (num_running - 1)

    def _factor(self, key: str, sigma_pct: float) -> float:
        return math.exp(sigma_pct / 100 * Random(f"{self.seed}:{key}").gauss(0.0, 1.0))
