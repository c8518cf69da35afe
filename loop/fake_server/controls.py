"""Every route that generates nothing: health, information, the cache, profiles, aborts, metrics."""

import asyncio
from typing import Any

import orjson
from aiohttp import web

from loop.fake_server.formats import WEIGHT_VERSION
from loop.fake_server.state import State

_FLUSHED = (
    "Cache flushed.\nPlease check backend logs for more details. "
    "(When there are running or waiting requests, the operation will not be performed.)\n"
)


async def health(state: State, _: web.BaseRequest) -> web.StreamResponse:
    """200 with an empty body."""
    if "hang_health" in state.args.fault:
        await asyncio.get_running_loop().create_future()
    return web.Response()


async def server_info(state: State, _: web.BaseRequest) -> web.StreamResponse:
    """The resolved arguments and the live state."""
    return _json(state.server_info())


async def model_info(state: State, _: web.BaseRequest) -> web.StreamResponse:
    """What serves under which name."""
    return _json(
        {
            "model_path": state.args.model_path,
            "served_model_name": state.model,
            "tokenizer_path": state.args.model_path,
            "is_generation": True,
            "preferred_sampling_params": None,
            "weight_version": WEIGHT_VERSION,
            "load_format": "fake",
            "model_type": "fake",
            "architectures": ["FakeForCausalLM"],
        }
    )


async def models(state: State, _: web.BaseRequest) -> web.StreamResponse:
    """OpenAI's list."""
    model = {"id": state.model, "object": "model", "created": 0, "owned_by": "sglang", "root": state.model}
    return _json({"object": "list", "data": [model | {"max_model_len": state.args.max_total_tokens}]})


async def flush_cache(state: State, request: web.BaseRequest) -> web.StreamResponse:
    """400 while requests run, unless they end within `?timeout=` seconds."""
    try:
        timeout_s = float(request.rel_url.query.get("timeout", 0))
    except ValueError:
        return web.Response(status=422, text="timeout must be a number of seconds\n")
    if "flush_refused" in state.args.fault or not await state.scheduler.wait_idle(timeout_s):
        scheduler = state.scheduler
        counts = f"#queue-req: {len(scheduler.queue)}, #running-req: {scheduler.num_running}"
        return web.Response(status=400, text=f"Cache not flushed because there are pending requests. {counts}\n")
    state.prefixes.flush()
    return web.Response(text=_FLUSHED)


async def abort_request(state: State, request: web.BaseRequest) -> web.StreamResponse:
    """Always 200, whether or not there was something to abort."""
    body = await _body(request)
    state.scheduler.abort(str(body.get("rid") or ""), everything=bool(body.get("abort_all")))
    return web.Response()


async def start_profile(state: State, request: web.BaseRequest) -> web.StreamResponse:
    """Returns at once; the log says when the trace is there."""
    state.profiler.start(await _body(request))
    return web.Response(text="Start profiling.\n")


async def stop_profile(state: State, _: web.BaseRequest) -> web.StreamResponse:
    """500 when nothing is being profiled, as SGLang answers."""
    if not state.profiler.stop():
        return web.Response(status=500, text="Internal Server Error")
    return web.Response(text="Stop profiling. This will take some time.\n")


async def metrics(state: State, _: web.BaseRequest) -> web.StreamResponse:
    """A few of SGLang's Prometheus names, if `--enable-metrics`."""
    if not state.args.enable_metrics:
        return web.json_response({"detail": "Not Found"}, status=404)
    scheduler = state.scheduler
    values = {
        "num_running_reqs": ("gauge", scheduler.num_running),
        "num_queue_reqs": ("gauge", len(scheduler.queue)),
        "gen_throughput": ("gauge", scheduler.throughput),
        "max_total_num_tokens": ("gauge", state.args.max_total_tokens),
        "prompt_tokens_total": ("counter", scheduler.num_prompt_tokens),
        "cached_tokens_total": ("counter", scheduler.num_cached_tokens),
        "generation_tokens_total": ("counter", scheduler.num_generated_tokens),
        "num_requests_total": ("counter", scheduler.num_requests),
        "num_aborted_requests_total": ("counter", scheduler.num_aborted),
    }
    label = f'{{model_name="{state.model}"}}'
    lines = [f"# TYPE sglang:{name} {kind}\nsglang:{name}{label} {value}\n" for name, (kind, value) in values.items()]
    return web.Response(text="".join(lines))


async def _body(request: web.BaseRequest) -> dict[str, Any]:
    """Optional everywhere here; what is not a JSON object counts as none."""
    try:
        value = orjson.loads(await request.read())
    except orjson.JSONDecodeError:
        return {}
    return value if isinstance(value, dict) else {}


def _json(value: dict[str, Any]) -> web.Response:
    return web.Response(body=orjson.dumps(value), content_type="application/json")
