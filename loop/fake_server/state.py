"""Everything a running server holds, assembled once from the flags."""

import argparse
import asyncio
from pathlib import Path
from typing import Any

from loop import __version__
from loop.clock import Clock
from loop.fake_server.answers import Answers
from loop.fake_server.delays import Delays
from loop.fake_server.faults import Mischief
from loop.fake_server.flags import build_parser
from loop.fake_server.orders import Order
from loop.fake_server.plans import Plan, length_finish
from loop.fake_server.prefix_cache import PrefixCache
from loop.fake_server.profiling import Profiler
from loop.fake_server.scheduler import Scheduler
from loop.fake_server.streams import Pace
from loop.fake_server.vocabulary import load_vocabulary


class State:
    """Create it inside the running event loop."""

    def __init__(self, args: argparse.Namespace, launch_command: list[str]) -> None:
        self.args = args
        self.launch_command = launch_command
        self.model: str = args.served_model_name or args.model_path
        self.clock = Clock(asyncio.get_running_loop())
        self.delays = Delays(args)
        self.scheduler = Scheduler(args.max_running_requests)
        self.pace = Pace(self.clock, self.scheduler, self.delays)
        self.prefixes = PrefixCache(args.max_total_tokens)
        self.answers = Answers(load_vocabulary(Path(args.model_path)), args.answer_seed)
        self.mischief = Mischief(args, self.answers)
        self.profiler = Profiler(
            lambda on_step: setattr(self.scheduler, "on_step", on_step), 100 * args.tpot_ms, args.fault
        )
        self.startup_s = 0.0

    def plan(self, order: Order, number: int) -> Plan:
        """What the `number`-th request gets; looks its prompt up in the prefix cache and leaves it there."""
        num_prompt = len(order.prompt_ids)
        num_cached = self._cached_tokens(order)
        ttft_s, tpot_s = self.delays.for_request(number, num_prompt - num_cached)
        cjk = self.answers.wants_cjk(order.prompt_ids)
        plan = Plan(
            order=order,
            tokens=self.answers.tokens(order.packed, order.num_tokens, cjk=cjk),
            finish=length_finish(order.num_tokens),
            ttft_s=ttft_s,
            tpot_s=tpot_s,
            num_cached=num_cached,
            chunk_tokens=self.args.tokens_per_chunk,
        )
        self.mischief.spoil_plan(plan, number)
        return plan

    def _cached_tokens(self, order: Order) -> int:
        if self.args.cached_tokens_fraction is not None:
            return int(min(1.0, self.args.cached_tokens_fraction) * len(order.prompt_ids))
        if self.args.disable_radix_cache:
            return 0
        num_cached = self.prefixes.match(order.packed)
        self.prefixes.remember(order.packed)
        return num_cached

    def server_info(self) -> dict[str, Any]:
        """The resolved arguments, and what SGLang adds to them."""
        resolved = vars(self.args) | {"ignored_number": build_parser().get_default("ignored_number")}
        usage = {"weight": 0.0, "kvcache": 0.0, "token_capacity": self.args.max_total_tokens, "graph": 0.0}
        internal = {
            "memory_usage": usage,
            "last_gen_throughput": self.scheduler.throughput,
            "effective_max_running_requests_per_dp": self.args.max_running_requests,
        }
        if self.args.tokens_per_chunk > 1:
            internal["avg_spec_accept_length"] = float(self.args.tokens_per_chunk)
        return resolved | {
            "served_model_name": self.model,
            "launch_command": self.launch_command,
            "max_total_num_tokens": self.args.max_total_tokens,
            "max_req_input_len": self.args.max_total_tokens - 1,
            "startup_time": self.startup_s,
            "internal_states": [internal],
            "version": __version__,
            "frontend": "fake",
        }
