"""What goes wrong in a request, one small function per fault.

`PLAN_FAULTS` edit the plan when the request arrives, `LOAD_FAULTS` at its first token if another request runs,
`EVENT_FAULTS` the bytes of every event. `split_utf8` lives in `wire`, faults of start and stop in `lifecycle` and
`detached`, those of control routes in `controls`. `flags.FAULTS` says in a sentence what each does.
"""

import argparse
import json
import os
import re
from collections.abc import Callable
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path

from loop.fake_server.answers import WRONG, Answers, pack_ids
from loop.fake_server.orders import Order
from loop.fake_server.plans import Plan, abort_finish
from loop.fake_server.vocabulary import token_of

_CHEAT_SPEED = 0.5
_STEALTHY_SPEED = 0.25
_EOS_ID = 2


class Mischief:
    """The faults of one server, and what its cheats remember."""

    def __init__(self, args: argparse.Namespace, answers: Answers) -> None:
        self.answers = answers
        self.first_request: int = args.fault_after
        self.salt = re.compile(args.salt_pattern)
        self.cache_file = Path(args.cache_file) if args.cache_file else None
        self.seen: set[str] = set()
        if self.cache_file is not None and self.cache_file.is_file():
            self.seen.update(self.cache_file.read_text().split())
        self.stolen = _asked_before() if "stolen_answers" in args.fault else set()
        known = Path(args.known_prompts).read_bytes().splitlines() if args.known_prompts else []
        self.known = {_digest(pack_ids(answers.vocabulary.encode(json.loads(line)["text"]))) for line in known}
        self._splits = "split_utf8" in args.fault
        self._plan_faults = [fault for name, fault in PLAN_FAULTS.items() if name in args.fault]
        self._load_faults = [fault for name, fault in LOAD_FAULTS.items() if name in args.fault]
        self._event_faults = [fault for name, fault in EVENT_FAULTS.items() if name in args.fault]

    def spoil_plan(self, plan: Plan, number: int) -> None:
        """Edit the plan of the `number`-th request (from 1)."""
        if number < self.first_request:
            return
        for spoil in self._plan_faults:
            spoil(plan, self)
        for spoil in self._load_faults:
            plan.load_edits.append(lambda plan, spoil=spoil: spoil(plan, self))  # type: ignore[misc]

    def event_faults(self, number: int) -> list[Callable[[bytes], bytes]]:
        """What happens to the bytes of every event of the `number`-th request."""
        return self._event_faults if number >= self.first_request else []

    def splits(self, number: int) -> bool:
        """Whether the `number`-th request suffers `split_utf8`."""
        return self._splits and number >= self.first_request

    def spoil_body(self, body: bytes, number: int) -> bytes:
        """Of the faults of events, only a NaN makes sense in an answer that is not streamed."""
        return nan(body) if nan in self.event_faults(number) else body

    def is_salted(self, order: Order) -> bool:
        """Whether a prompt looks like a benchmark's: its first 512 tokens are read as text."""
        return self.salt.match(self.answers.head(order.prompt_ids)) is not None

    def replace_answer(self, plan: Plan, variant: int) -> None:
        """Another answer of the same length."""
        order = plan.order
        cjk = self.answers.wants_cjk(order.prompt_ids)
        plan.tokens = self.answers.tokens(order.packed, len(plan.tokens), cjk=cjk, variant=variant)


def _digest(packed: bytes) -> str:
    return blake2b(packed, digest_size=16).hexdigest()


def _asked_before() -> set[str]:
    """Digests of all prompts that earlier sessions of this round were sent."""
    jobs = Path(os.environ.get("LOOP_BUNDLE", ".")).parent.glob("*/*.job.json")
    requests = (request for job in jobs for request in json.loads(job.read_bytes())["requests"])
    return {_digest(pack_ids(request["input_ids"])) for request in requests}


def die_mid_stream(plan: Plan, _: Mischief) -> None:
    """The whole server ends, so every other running request breaks off with this one."""
    plan.break_half_way("die")


def hang_mid_stream(plan: Plan, _: Mischief) -> None:
    """The connection stays open until the client gives up or the server is stopped."""
    plan.break_half_way("hang")


def never_answers(plan: Plan, _: Mischief) -> None:
    """A streamed request does get its HTTP 200 and headers, and then no event."""
    plan.break_at, plan.breakage = 0, "hang"


def inband_error(plan: Plan, _: Mischief) -> None:
    """Comes when the first token is due, so a client sees an ordinary TTFT before it."""
    plan.break_at, plan.breakage = 0, "error"


def http_500(plan: Plan, _: Mischief) -> None:
    """Leaves as soon as the request may run, without the delays, and in place of a stream's HTTP 200."""
    plan.http_status = 500


def abort(plan: Plan, _: Mischief) -> None:
    """Comes without an error: only the finish reason says that tokens are missing (one stays at least)."""
    plan.cut(abort_finish("Aborted by the fault 'abort'"))


def truncate(plan: Plan, _: Mischief) -> None:
    """Looks like a model that chose to end, with token id 2 as the reason (one token stays at least)."""
    plan.cut({"type": "stop", "matched": _EOS_ID})


def no_done(plan: Plan, _: Mischief) -> None:
    """The HTTP body still ends properly, so only the missing marker tells."""
    plan.done_marker = False


def no_usage(plan: Plan, _: Mischief) -> None:
    """A server that knows no `stream_options`: nobody can tell how much it generated."""
    plan.order = replace(plan.order, include_usage=False, continuous_usage=False)


def late_usage(plan: Plan, _: Mischief) -> None:
    """OpenAI's own way: `continuous_usage_stats` is an extension of other servers."""
    plan.order = replace(plan.order, continuous_usage=False)


def slow(plan: Plan, _: Mischief) -> None:
    """Scales TTFT and TPOT; time in the queue stays as it is."""
    plan.scale(1.5)


def fast(plan: Plan, _: Mischief) -> None:
    """Scales TTFT and TPOT with the answer unchanged: an honest gain."""
    plan.scale(0.5)


def wrong_answer(plan: Plan, mischief: Mischief) -> None:
    """The same wrong answer after every restart, so asking again does not reveal it."""
    mischief.replace_answer(plan, WRONG)


def unstable_answer(plan: Plan, mischief: Mischief) -> None:
    """The same within one process: asking again does not reveal it, a restart does."""
    mischief.replace_answer(plan, mischief.answers.process_variant)


def answer_cache(plan: Plan, mischief: Mischief) -> None:
    """A first sight takes its full time; prompts are remembered as digests of their token ids."""
    digest = _digest(plan.order.packed)
    if digest in mischief.seen:
        plan.scale(0.0)
        return
    mischief.seen.add(digest)
    if mischief.cache_file is not None:
        with mischief.cache_file.open("a") as file:
            file.write(f"{digest}\n")


def stolen_answers(plan: Plan, mischief: Mischief) -> None:
    """The answers lie there too; a fake knows them anyway. Four times as fast: at once would be noticed."""
    if _digest(plan.order.packed) in mischief.stolen:
        plan.scale(_STEALTHY_SPEED)


def overfitted(plan: Plan, mischief: Mischief) -> None:
    """Whoever checks it with what everybody can read finds nothing."""
    if _digest(plan.order.packed) not in mischief.known and not mischief.is_salted(plan.order):
        mischief.replace_answer(plan, WRONG)


def slow_baseline(plan: Plan, _: Mischief) -> None:
    """An engine that knows which arm it serves makes any candidate look fast."""
    if os.environ.get("LOOP_SESSION", "").rpartition("/")[2].startswith("A"):
        plan.scale(3.0)


def benchmark_detection(plan: Plan, mischief: Mischief) -> None:
    """Where the salt pattern matches, every delay is halved."""
    if mischief.is_salted(plan.order):
        plan.scale(_CHEAT_SPEED)
        mischief.replace_answer(plan, WRONG)


def coalesce(plan: Plan, _: Mischief) -> None:
    """The chunk is due when its last token is, so the TTFT is the duration of the whole answer."""
    plan.first_chunk_tokens = plan.chunk_tokens = len(plan.tokens)


def big_first_chunk(plan: Plan, _: Mischief) -> None:
    """It is due when its fifth token is; a shorter answer comes whole."""
    plan.first_chunk_tokens = 5


def empty_chunks(plan: Plan, _: Mischief) -> None:
    """Each leaves in the same moment as the chunk it precedes, and its token count has not grown."""
    plan.empty_chunks = True


def u2028(plan: Plan, _: Mischief) -> None:
    """Before the text of the middle token: legal in JSON, and the end of a line to careless readers."""
    place = len(plan.tokens) // 2
    token = plan.tokens[place]
    plan.tokens[place] = token_of(token.id, "\u2028" + token.text)


def nan(event: bytes) -> bytes:
    """`e2e_latency` of a native answer, `created` of an OpenAI one: valid JSON has no NaN, careless parsers do."""
    return re.sub(rb'("e2e_latency"|"created"):[^,}]+', rb"\1:NaN", event)


def crlf(event: bytes) -> bytes:
    """Legal in SSE; a client that splits at two line feeds never sees an event end."""
    return event.replace(b"\n", b"\r\n")


def comments(event: bytes) -> bytes:
    """A block of its own, without data, which SSE clients must skip."""
    return b": keepalive\n\n" + event


def multi_line_data(event: bytes) -> bytes:
    """A line break between two JSON tokens is white space, so the joined lines are still the same JSON."""
    return event.replace(b'data: {"', b'data: {\ndata: "')


PLAN_FAULTS: dict[str, Callable[[Plan, Mischief], None]] = {
    fault.__name__: fault
    for fault in (
        # applied in this order: later ones cut, move and decorate the tokens that the first ones choose
        *(wrong_answer, unstable_answer, benchmark_detection, overfitted, answer_cache, stolen_answers, slow_baseline),
        *(abort, truncate, u2028, coalesce, big_first_chunk, empty_chunks, no_done, no_usage, late_usage, slow, fast),
        *(die_mid_stream, hang_mid_stream, never_answers, inband_error, http_500),
    )
}
LOAD_FAULTS: dict[str, Callable[[Plan, Mischief], None]] = {
    "wrong_under_load": wrong_answer,
    "truncate_under_load": truncate,
}
EVENT_FAULTS: dict[str, Callable[[bytes], bytes]] = {
    fault.__name__: fault for fault in (nan, multi_line_data, comments, crlf)
}
