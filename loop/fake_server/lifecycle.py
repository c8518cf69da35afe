"""From launch to exit code, with the faults of both ends."""

import argparse
import asyncio
import gc
import logging
import os
import signal
import socket
from time import monotonic

from loop.fake_server.connection import Server
from loop.fake_server.detached import leave_behind
from loop.fake_server.logs import READY_LINE
from loop.fake_server.routes import dispatch
from loop.fake_server.state import State
from loop.fake_server.streams import KILLED_RC

LOG = logging.getLogger(__name__)
_BACKLOG = 2048
_PATIENCE_S = 0.01  # with running requests at the end; to the library, 0 means for ever
_TRACEBACK = """Traceback (most recent call last):
  File "sglang/srt/managers/scheduler.py", line 6341, in run_scheduler_process
    scheduler = Scheduler(server_args, port_args, gpu_id, tp_rank)
  File "sglang/srt/model_executor/model_runner.py", line 512, in load_model
    self.model = loader.load_model(model_config=self.model_config)
"""
_DEATH = "Received sigquit from a child process. It usually means the child failed."


async def serve(args: argparse.Namespace, launch_command: list[str]) -> int:
    """Returns the exit code once a signal has asked for the end."""
    began = monotonic()
    stop = asyncio.Event()
    _listen_for_signals(stop, ignore="hang_at_stop" in args.fault)
    LOG.info("server_args=ServerArgs(%s)", ", ".join(f"{name}={value!r}" for name, value in vars(args).items()))
    if await _wait(stop, args.start_delay_s):
        return 0
    if "die_at_start" in args.fault:
        LOG.error("Scheduler hit an exception: %sRuntimeError: injected by the fault 'die_at_start'\n", _TRACEBACK)
        LOG.error(_DEATH)
        return 1
    if "oom_at_start" in args.fault:
        _run_out_of_memory()
    if "hang_at_start" in args.fault:
        await stop.wait()
        return 0
    try:
        listener = _bind(args.host, args.port)
    except OSError as error:
        _report_unbound((args.host, args.port), error)
        return 1
    await _serve_until(stop, args, launch_command, listener, began)
    return 0


async def _serve_until(
    stop: asyncio.Event, args: argparse.Namespace, launch_command: list[str], listener: socket.socket, began: float
) -> None:
    state = State(args, launch_command)
    http = Server(dispatch(state))
    server = await asyncio.get_running_loop().create_server(http, sock=listener, backlog=_BACKLOG)
    leave_behind(args, listener)
    LOG.info("delays: seed=%d", state.delays.seed)
    LOG.info("Uvicorn running on http://%s:%d (Press CTRL+C to quit)", *listener.getsockname()[:2])
    # A collection that walks everything imported so far would delay tokens by milliseconds.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000)
    state.startup_s = monotonic() - began
    LOG.info(READY_LINE)
    reports = asyncio.create_task(state.scheduler.report())
    await stop.wait()
    reports.cancel()
    LOG.info("Draining requests and shutting down...")
    await asyncio.sleep(args.stop_delay_s)
    server.close()
    await http.shutdown(_PATIENCE_S)


def _listen_for_signals(stop: asyncio.Event, *, ignore: bool) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, (lambda: LOG.info("signal ignored")) if ignore else stop.set)


async def _wait(stop: asyncio.Event, seconds: float) -> bool:
    """Whether the signal came first."""
    try:
        await asyncio.wait_for(stop.wait(), seconds)
    except TimeoutError:
        return False
    return True


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError:
        listener.close()
        raise
    return listener


def _report_unbound(address: tuple[str, int], error: OSError) -> None:
    """In one line without a traceback, as Uvicorn does."""
    LOG.error("[Errno %s] error while attempting to bind on address %s: %s", error.errno, address, error)


def _run_out_of_memory() -> None:
    reason = "Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 139.81 GiB of which 1.23 GiB is free."
    LOG.error(
        "Scheduler hit an exception: %storch.OutOfMemoryError: CUDA out of memory. %s (fault 'oom_at_start')\n",
        _TRACEBACK,
        reason,
    )
    LOG.error(_DEATH)
    os._exit(KILLED_RC)  # SGLang kills its own process tree here
