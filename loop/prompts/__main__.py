"""`python -m loop.prompts [--check] [DIR]`: make the prompt files under DIR (`workloads`), or compare them."""

import argparse
import sys
from pathlib import Path

from loop.prompts.catalog import make_files
from loop.prompts.store import format_lines


def main() -> int:
    """The exit code: 1 only if `--check` finds a file that differs or is missing. Other files are left alone."""
    parser = argparse.ArgumentParser(prog="python -m loop.prompts", description="Make the prompt files that ship.")
    parser.add_argument("directory", nargs="?", type=Path, default=Path("workloads"), help="default: %(default)s")
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if a file differs")
    arguments = parser.parse_args()
    differing = 0
    for name, prompts in make_files().items():
        path = arguments.directory / name
        data = format_lines(prompts, path)
        same = path.is_file() and path.read_bytes() == data
        if same:
            continue
        differing += 1
        if arguments.check:
            print(f"{path} {'differs' if path.exists() else 'is missing'}", file=sys.stderr)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            print(f"wrote {path}: {len(prompts)} prompts, {len(data)} bytes")
    if arguments.check and differing:
        print("  next: python -m loop.prompts", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
