"""Safetensors files written as a stream: a tensor at a time, so that memory stays bounded by the largest chunk.

Format: https://huggingface.co/docs/safetensors/index#format (8-byte little-endian header length, JSON header, raw
data). `safetensors.serialize_file` would need every tensor of a file at once.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from loop.synthetic.bf16 import Bits

SHARD_BYTES = 4_000_000_000  # a file is closed before it grows beyond this


@dataclass(frozen=True)
class Tensor:
    """A bf16 tensor: its chunks, concatenated, are its elements in C order. They are made only when written."""

    name: str
    shape: tuple[int, ...]
    chunks: Callable[[], Iterator[Bits]]

    @property
    def num_bytes(self) -> int:
        """Size in the file."""
        size = 2
        for extent in self.shape:
            size *= extent
        return size


def write_shards(directory: Path, tensors: Iterable[Tensor], shard_bytes: int = SHARD_BYTES) -> None:
    """`model.safetensors`, or numbered shards and their index when one file would be too large."""
    groups: list[list[Tensor]] = [[]]
    used = 0
    for tensor in tensors:
        if groups[-1] and used + tensor.num_bytes > shard_bytes:
            groups.append([])
            used = 0
        groups[-1].append(tensor)
        used += tensor.num_bytes
    if len(groups) == 1:
        _write_file(directory / "model.safetensors", groups[0])
        return
    weight_map: dict[str, str] = {}
    for number, group in enumerate(groups, start=1):
        name = f"model-{number:05d}-of-{len(groups):05d}.safetensors"
        _write_file(directory / name, group)
        weight_map.update({tensor.name: name for tensor in group})
    index = {"metadata": {"total_size": sum(t.num_bytes for g in groups for t in g)}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _write_file(path: Path, tensors: list[Tensor]) -> None:
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for tensor in tensors:
        start, end = end, end + tensor.num_bytes
        header[tensor.name] = {"dtype": "BF16", "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the data starts aligned
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors:
            written = sum(file.write(np.ascontiguousarray(chunk, dtype="<u2").data) for chunk in tensor.chunks())
            assert written == tensor.num_bytes, tensor.name
