"""The routes that generate: /generate, /v1/completions, /v1/chat/completions."""

import time
from collections.abc import Callable
from time import monotonic

import orjson
from aiohttp import web

from loop.fake_server.connection import received_at
from loop.fake_server.formats import Format, NativeFormat, Times
from loop.fake_server.openai_formats import ChatFormat, CompletionFormat
from loop.fake_server.orders import BadOrder, Body, Order, chat_order, completion_order, native_order
from loop.fake_server.plans import Plan
from loop.fake_server.state import State
from loop.fake_server.streams import Stream
from loop.fake_server.wire import EventStream, FaultyWire, SplittingWire, Wire


async def generate(state: State, request: web.BaseRequest) -> web.StreamResponse:
    """SGLang's own route."""

    def form(plan: Plan, times: Times) -> Format:
        args = state.args
        return NativeFormat(
            plan,
            times,
            incremental=args.incremental_streaming_output,
            metrics=args.enable_metrics,
            text=not args.skip_tokenizer_init,
        )

    return await _serve(state, request, native_order, form)


async def complete(state: State, request: web.BaseRequest) -> web.StreamResponse:
    """OpenAI's text route."""

    def form(plan: Plan, _: Times) -> Format:
        return CompletionFormat(plan, model=state.model, cache_report=state.args.enable_cache_report)

    return await _serve(state, request, completion_order, form)


async def chat(state: State, request: web.BaseRequest) -> web.StreamResponse:
    """OpenAI's chat route."""

    def form(plan: Plan, _: Times) -> Format:
        args = state.args
        return ChatFormat(
            plan, model=state.model, cache_report=args.enable_cache_report, reasoning_tokens=args.reasoning_tokens
        )

    return await _serve(state, request, chat_order, form)


async def _serve(
    state: State,
    request: web.BaseRequest,
    read: Callable[[Body, Callable[[str], list[int]]], Order],
    make_form: Callable[[Plan, Times], Format],
) -> web.StreamResponse:
    try:
        body = orjson.loads(await request.read())
        order = read(body, state.answers.vocabulary.encode)
    except (orjson.JSONDecodeError, BadOrder, KeyError, TypeError, AttributeError) as error:
        return _json({"error": {"message": str(error), "type": "invalid_request_error", "code": 400}}, 400)
    start_s = received_at(request)
    times = Times(received_s=start_s, received_unix_s=time.time())
    scheduler = state.scheduler
    scheduler.num_requests += 1
    number = scheduler.num_requests
    if await scheduler.admit():
        start_s = monotonic()
        times.queued_s = start_s - times.received_s
    try:
        plan = state.plan(order, number)
        form = make_form(plan, times)
        scheduler.count_prompt(len(order.prompt_ids), plan.num_cached)
        if plan.http_status != 200:
            return _raw(form.error("injected by the fault 'http_500'", plan.http_status), plan.http_status)
        wire, response = await _open(state, request, order, number)
        stream = Stream(plan, form, wire, state.pace, times, start_s)
        try:
            stream.start()
            await stream.ended
        finally:
            stream.close()
    finally:
        scheduler.release()
    if response is not None:
        return response
    if stream.failed:
        return _raw(form.error("injected by the fault 'inband_error'", 500), 500)
    return _raw(state.mischief.spoil_body(form.whole(), number), 200)


async def _open(
    state: State, request: web.BaseRequest, order: Order, number: int
) -> tuple[Wire | None, EventStream | None]:
    """The way to the client, if the answer is to be streamed."""
    if not order.stream:
        return None, None
    transport = request.transport
    if transport is None:
        raise ConnectionResetError("the client has gone")
    response = EventStream(transport)
    await response.prepare(request)
    faults = state.mischief.event_faults(number)
    if state.mischief.splits(number):
        return SplittingWire(transport, faults, state.clock), response
    return FaultyWire(transport, faults) if faults else Wire(transport), response


def _raw(body: bytes, status: int) -> web.Response:
    return web.Response(body=body, status=status, content_type="application/json")


def _json(value: Body, status: int) -> web.Response:
    return _raw(orjson.dumps(value), status)
