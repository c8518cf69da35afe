"""File descriptors: one per connection, and most shells allow 1024."""

import contextlib
import resource

MOST = 1 << 20
"""Where the kernel allows any number: more would be asked of it in vain on some systems."""


def allow_many() -> int:
    """Raise this process's limit of open files as far as it may itself; returns the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST if hard == resource.RLIM_INFINITY else hard
    if soft not in (wanted, resource.RLIM_INFINITY):
        with contextlib.suppress(ValueError, OSError):  # some systems allow less than they say
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
