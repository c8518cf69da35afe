"""Plugins, as SGLang has them: functions under an entry-point group, called before anything else is loaded."""

import logging
import os
from importlib.metadata import distributions

GROUP = "loop.fake.plugins"
LOG = logging.getLogger(__name__)


def load_plugins() -> None:
    """All that PYTHONPATH offers, in its order. One that raises is logged, and the server goes on, as SGLang's does.

    The rest of Python's path is not searched: that would cost every start what few of them need.
    """
    path = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    points = [point for found in distributions(path=path) for point in found.entry_points if point.group == GROUP]
    for point in points:
        try:
            point.load()()
        except Exception:
            LOG.exception("Failed to execute general plugin: %s", point.name)
