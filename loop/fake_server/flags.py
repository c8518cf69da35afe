"""The command line and the list of faults. Standard library only: bundles are validated against it, serving nothing."""

import argparse

MAX_DETACHED_S = 120.0

FAULTS: dict[str, str] = {
    # at start and stop
    "die_at_start": "exit 1 with a traceback after the start delay",
    "oom_at_start": "exit 137 with a CUDA out-of-memory traceback after the start delay",
    "hang_at_start": "never open the port, never print the ready line",
    "hang_at_stop": "ignore SIGINT and SIGTERM",
    "orphan": "leave a detached process behind (new session, same environment)",
    "hidden_orphan": "leave a detached process behind (new session, empty environment)",
    "port_squatter": "leave a detached process behind that keeps the port open",
    # in the life of a request
    "die_mid_stream": "exit 137 after half of the tokens",
    "hang_mid_stream": "send half of the tokens, then nothing",
    "never_answers": "accept the request, send nothing",
    "inband_error": "HTTP 200, then an error event instead of tokens (500 when not streaming)",
    "http_500": "HTTP 500 instead of an answer",
    "abort": "half of the tokens, then finish_reason abort",
    "truncate": "half of the tokens, then finish_reason stop",
    "no_done": "no [DONE] marker",
    "no_usage": "OpenAI routes: no token counts, whatever was asked",
    "late_usage": "OpenAI routes: token counts at the end only, whatever was asked",
    "slow": "every delay of a request x1.5",
    "fast": "every delay of a request x0.5",
    # answers that differ, and cheats
    "wrong_answer": "another answer than the known one",
    "wrong_under_load": "another answer if another request runs at the first token",
    "truncate_under_load": "half of the tokens if another request runs at the first token",
    "unstable_answer": "another answer in every server process",
    "answer_cache": "answer a prompt seen before at once, also after a flush (and, with --cache-file, after a restart)",
    "stolen_answers": "every delay x0.25 on what an earlier session of the round was asked (it reads its files)",
    "overfitted": "right on salted prompts and on those in --known-prompts, another answer to every other prompt",
    "slow_baseline": "every delay of a request x3 in sessions of the baseline, as LOOP_SESSION tells",
    "benchmark_detection": "fast and wrong on prompts that begin with a salt line (--salt-pattern), right otherwise",
    "coalesce": "hold all tokens and send them as one chunk at the end",
    # bytes that a fragile client gets wrong
    "big_first_chunk": "five tokens in the first chunk",
    "empty_chunks": "a chunk without new tokens before every chunk",
    "nan": "NaN where a number belongs",
    "u2028": "a raw U+2028 (line separator) in the text",
    "crlf": "lines end with CR LF, events with two of them",
    "comments": "a ': keepalive' comment before every event",
    "multi_line_data": "every event's JSON spread over two data lines",
    "split_utf8": "network chunks that end inside UTF-8 sequences and inside events",
    # control routes
    "flush_refused": "/flush_cache answers 400 always",
    "hang_health": "/health and /health_generate never answer",
    "profile_ignored": "/start_profile answers 200 and starts nothing",
    "trace_missing": "the log says that a trace is saved, and none is",
    "trace_cut": "half of every trace",
    "trace_stale": "every trace is dated an hour back",
}

SALT_PATTERN = r"(?:[a-z]{5} ){7}[a-z]{5}\n"


def build_parser() -> argparse.ArgumentParser:
    """Every option of the server. The epilog of `--help` lists every fault."""
    width = max(map(len, FAULTS))
    parser = argparse.ArgumentParser(
        prog="python -m loop.fake_server",
        description="A server with known delays, known answers and injectable faults, behind SGLang's HTTP surface.",
        epilog="faults (--fault NAME, repeatable):\n" + "\n".join(f"  {n:<{width}}  {s}" for n, s in FAULTS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    _add_server_flags(parser)
    _add_delay_flags(parser)
    _add_answer_flags(parser)
    return parser


def _add_server_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("server").add_argument
    add("--model-path", required=True, help="its tokenizer.json is used where there is one; need not exist")
    add("--served-model-name", help="default: the model path")
    add("--host", default="127.0.0.1", help="where it listens")
    add("--port", type=_whole, default=30000, help="0: any free port, named in the log")
    add("--max-running-requests", type=_positive, default=256, help="further requests queue, first come first served")
    add("--max-total-tokens", type=_positive, default=1 << 20, help="capacity of the prefix cache, in tokens")
    add("--disable-radix-cache", action="store_true", help="no prefix cache: cached_tokens stays 0")
    add("--enable-metrics", action="store_true", help="serve /metrics, more fields in meta_info")
    add("--enable-cache-report", action="store_true", help="cached tokens in the usage of OpenAI answers")
    add("--incremental-streaming-output", action="store_true", help="/generate chunks carry only what is new")
    add("--skip-tokenizer-init", action="store_true", help="/generate answers with token ids and no text")
    add("--tokens-per-chunk", type=_positive, default=1, help="tokens in every chunk after the first one")
    add("--reasoning-tokens", type=_whole, default=0, help="chat: the first N tokens are reasoning_content")
    add("--log-level", default="info", choices=["debug", "info", "warning", "error"], help="what it prints")
    add("--inert-number", type=int, default=0, help="changes nothing but /server_info")
    add("--ignored-number", type=int, default=0, help="accepted, and silently kept at its default")


def _add_delay_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("delays").add_argument
    add("--ttft-ms", type=_amount, default=5.0, help="from the request's last byte to its first token")
    add("--tpot-ms", type=_amount, default=1.0, help="from one token to the next")
    add("--prefill-us-per-token", type=_amount, default=0.0, help="added to the TTFT for every uncached prompt token")
    add("--tpot-batch-slope-pct", type=_amount, default=0.0, help="TPOT grows by this for every other running request")
    add("--jitter-pct", type=_amount, default=0.0, help="sigma of one log-normal factor per request")
    add("--session-jitter-pct", type=_amount, default=0.0, help="sigma of one log-normal factor per server process")
    add("--seed", type=int, help="of both jitters; default: a new one in every process, printed in the log")
    add("--start-delay-s", type=_amount, default=0.0, help="before the port opens")
    add("--stop-delay-s", type=_amount, default=0.0, help="between the signal and the end")


def _add_answer_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("answers and faults").add_argument
    add("--answer-seed", type=_whole, default=0, help="another seed, another known answer to every prompt")
    add("--cached-tokens-fraction", type=_amount, help="report and save this share of every prompt, whatever was seen")
    add("--fault", action="append", default=[], choices=FAULTS, metavar="NAME", help="repeatable; listed below")
    add("--fault-after", type=_whole, default=1, metavar="N", help="request faults begin with the N-th request")
    add("--cache-file", help="answer_cache: where prompts are remembered across processes")
    add("--known-prompts", help="overfitted: a prompt file, one JSON object with a text a line")
    add("--salt-pattern", default=SALT_PATTERN, help="benchmark_detection: regular expression; default: eight words")
    add("--detached-s", type=_amount, default=MAX_DETACHED_S, help="how long a detached process lives, 120 at most")


def _amount(text: str) -> float:
    value = float(text)
    if not 0 <= value < float("inf"):
        raise ValueError(text)
    return value


def _whole(text: str) -> int:
    value = int(text)
    if value < 0:
        raise ValueError(text)
    return value


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError(text)
    return value


# argparse prints the name of the type: "invalid amount value: '-1'".
_amount.__name__, _whole.__name__, _positive.__name__ = "amount", "whole number", "positive number"
