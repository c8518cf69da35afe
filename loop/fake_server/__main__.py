"""`python -m loop.fake_server --model-path DIR --port PORT`: serve until a signal asks for the end."""

import signal
import sys

from loop.fake_server.flags import build_parser


def main(argv: list[str]) -> int:
    """Parse, then import what is slow: `--help` and a wrong flag answer at once."""
    parser = build_parser()
    args = parser.parse_args(argv)
    for number in (signal.SIGINT, signal.SIGTERM):  # until the event loop takes them
        signal.signal(number, lambda *_: sys.exit(0))
    import uvloop

    from loop.descriptors import allow_many
    from loop.fake_server.detached import is_loopback
    from loop.fake_server.extensions import load_plugins
    from loop.fake_server.lifecycle import serve
    from loop.fake_server.logs import configure_logs

    if {"orphan", "hidden_orphan", "port_squatter"} & set(args.fault) and not is_loopback(args.host):
        parser.error("faults that leave a process behind need a loopback --host")
    configure_logs(args.log_level)
    if "ignore_plugins" not in args.fault:
        load_plugins()
    allow_many()
    return int(uvloop.run(serve(args, [sys.executable, "-m", "loop.fake_server", *argv])))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
