"""SGLang's Rust client, at once.

`python -m sglang.benchmark.rust_client` imports all of `sglang`, for ten seconds, and then hands its arguments to the
extension that this loads from the same place: `python -m tests.perf.rust_client ARGUMENTS`.
"""

import sys
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path

NAME = "sglang.srt.rust_extensions._bench"


def extension_path() -> Path:
    """Where the wheel has it; raises FileNotFoundError if it does not."""
    package = find_spec("sglang")
    places = package.submodule_search_locations if package is not None else None
    for place in places or ():
        for suffix in EXTENSION_SUFFIXES:
            path = Path(place) / "srt" / "rust_extensions" / f"_bench{suffix}"
            if path.is_file():
                return path
    raise FileNotFoundError(f"the installed sglang has no extension {NAME}")


def main() -> int:
    spec = spec_from_file_location(NAME, extension_path())
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    module.run_argv(["sglang-bench", *sys.argv[1:]])
    return 0


if __name__ == "__main__":
    sys.exit(main())
