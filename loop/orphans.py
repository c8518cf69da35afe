"""Orphans: processes that outlived the one that started them, adopted so that none is lost by dropping its mark."""

import contextlib
import ctypes
import os

import psutil

PR_SET_CHILD_SUBREAPER = 36
"""From then on the kernel gives orphans among our descendants to us instead of to init."""


def adopt() -> None:
    """Let every orphan of what we start become our child. Does nothing where the kernel knows no such thing."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants() -> frozenset[int]:
    """Ids of all processes below this one."""
    return frozenset(process.pid for process in psutil.Process().children(recursive=True))


def strays(before: frozenset[int]) -> list[psutil.Process]:
    """Living processes below this one that are not in `before`. The dead ones that were left to us are buried."""
    found = []
    for process in psutil.Process().children(recursive=True):
        if process.pid in before:
            continue
        with contextlib.suppress(psutil.Error, ChildProcessError):
            if process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
            elif process.ppid() == os.getpid():
                os.waitpid(process.pid, os.WNOHANG)
    return found
