"""A checkpoint: the files of a model on disk, and what is missing of them."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
WEIGHTS = (".safetensors", ".bin", ".pt", ".gguf")


def weight_files(model: Path) -> list[Path]:
    """The files that hold weights, sorted."""
    return sorted(path for path in model.iterdir() if path.suffix in WEIGHTS and path.is_file())


def architecture(model: Path) -> str:
    """What `config.json` calls it, or `?`. Raises OSError or ValueError if it cannot be read."""
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    return str((config.get("architectures") or ["?"])[0])


def find_gaps(model: Path) -> Iterator[str]:
    """What is missing or cut off, one sentence each. Raises OSError or ValueError for a file that cannot be read."""
    if not (model / "tokenizer.json").is_file():
        yield "tokenizer.json is missing, and requests are sent as token ids"
    files = weight_files(model)
    if not files:
        yield "it has no weights"
    for index in INDEXES:
        if (model / index).is_file():
            named = json.loads((model / index).read_text(encoding="utf-8")).get("weight_map", {})
            missing = (shard for shard in sorted(set(named.values())) if not (model / shard).is_file())
            yield from (f"{shard} is missing, {index} names it" for shard in missing)
    for path in files:
        if path.suffix == ".safetensors" and (num_bytes := _num_missing_bytes(path)):
            yield f"{path.name} was cut off, {num_bytes} bytes are missing"


def read_tensors(path: Path) -> dict[str, dict[str, Any]]:
    """Name → `dtype`, `shape` and `data_offsets` of every tensor in a safetensors file, from its header alone.

    Raises OSError or ValueError if there is none.
    """
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header: dict[str, dict[str, Any]] = json.loads(file.read(size))
    return {name: tensor for name, tensor in header.items() if name != "__metadata__"}


def _num_missing_bytes(path: Path) -> int:
    """What a safetensors file lacks of what its header promises. The header's size comes first, in 8 bytes."""
    present = path.stat().st_size
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
    if present < 8 + size:
        return 8 + size - present
    ends = [tensor["data_offsets"][1] for tensor in read_tensors(path).values()]
    return max(0, 8 + size + max(ends, default=0) - present)
