"""Processes that outlive the server: the faults `orphan`, `hidden_orphan` and `port_squatter`.

They do nothing but sleep, end by themselves after `--detached-s` (120 at most), and hold nothing but the listening
socket that makes a squatter one. Orphans are found by their environment, which a hidden one has not, or by the word
`loop-fake-server-orphan` (or `-squatter`) in their command line.
"""

import argparse
import logging
import socket
import subprocess
import sys
from ipaddress import ip_address

from loop.fake_server.flags import MAX_DETACHED_S

LOG = logging.getLogger(__name__)


def is_loopback(host: str) -> bool:
    """A squatter must not keep a port open that others can reach."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def leave_behind(args: argparse.Namespace, listener: socket.socket) -> None:
    """Start what the faults ask for, in sessions of their own."""
    seconds = min(args.detached_s, MAX_DETACHED_S)
    if "orphan" in args.fault:
        _sleep_detached("loop-fake-server-orphan", seconds, ())
    if "hidden_orphan" in args.fault:
        _sleep_detached("loop-fake-server-orphan", seconds, (), env={})
    if "port_squatter" in args.fault:
        _sleep_detached("loop-fake-server-squatter", seconds, (listener.fileno(),))


def _sleep_detached(
    label: str, seconds: float, descriptors: tuple[int, ...], env: dict[str, str] | None = None
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", f"import time; time.sleep({seconds!r})", label],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=descriptors,
        start_new_session=True,
        env=env,
    )
    process.returncode = 0  # it outlives us by design: no ResourceWarning for a child that still runs
    LOG.info("%s pid=%d for %g s", label, process.pid, seconds)
