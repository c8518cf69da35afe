"""Plugins of the fake server: found and treated as SGLang does, which logs one that raises and serves without it."""

import logging
import os
from importlib.metadata import distributions

GROUP = "loop.fake_server.plugins"


def load_plugins() -> None:
    """Call every entry point of the group that a directory on PYTHONPATH offers: nobody installs such a plugin."""
    places = list(filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)))
    # All of them before the first is loaded: looking asks sys.meta_path, which a plugin may change.
    for distribution in list(distributions(path=places)) if places else ():
        for point in distribution.entry_points.select(group=GROUP):
            try:
                point.load()()
            except Exception:
                logging.getLogger(__name__).exception("plugin %s failed", point.name)
