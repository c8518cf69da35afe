"""When the requests of an open loop are due: an absolute schedule, drawn before anything is sent."""

import math
import random
from itertools import accumulate

from loop.suites import Workload


def schedule_ns(workload: Workload, pass_index: int, num_requests: int) -> tuple[int, ...] | None:
    """Nanoseconds from the start of the step to each request, the first at 0; None for a closed loop.

    Poisson arrivals are exponential gaps stretched to a mean of exactly `1 / rate_per_s`, so that neither the draw nor
    the seed changes the load (as vLLM's benchmark does). Every session has the same; every pass of it another.
    """
    if workload.rate_per_s is None:
        return None
    gaps = [1.0] * (num_requests - 1)
    if workload.arrival == "poisson":
        # Only `random.random()` has the same sequence on every Python version.
        draw = random.Random(f"{workload.seed or 0}|{pass_index}")
        gaps = [-math.log(1.0 - draw.random()) for _ in gaps]
    span_s = (num_requests - 1) / workload.rate_per_s
    scale = span_s / sum(gaps) if gaps else 0.0
    return tuple(round(at * scale * 1e9) for at in accumulate(gaps, initial=0.0))
