"""SGLang's log lines: one logger to stderr, `[YYYY-MM-DD HH:MM:SS] message`."""

import logging
import sys

READY_LINE = "The server is fired up and ready to roll!"


def configure_logs(level: str) -> None:
    """Once, before the first line."""
    logging.basicConfig(
        stream=sys.stderr,
        level=level.upper(),
        format="[%(asctime)s] %(message)s",
        datefmt="%Y-%m-%d %H:%M:%S",
        force=True,
    )
    logging.getLogger("asyncio").setLevel(logging.WARNING)
