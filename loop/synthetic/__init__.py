"""Synthetic checkpoints: real architectures, generated weights, confident and context-dependent greedy outputs.

A small random model answers with noise, and a dummy-weight one with ties, so neither can tell a correct server from a
broken one. These weights compute chosen table lookups instead: the best token leads by far more than bf16 noise at
every position, and yet a fault in any layer's attention, cache, rotary embedding, recurrent state or MLP changes the
text. docs/synthetic-checkpoint.md describes the construction and the measured margins.
"""

import json
import shutil
import tempfile
from pathlib import Path

from loop.errors import InputError
from loop.synthetic.geometry import Geometry, load_geometry
from loop.synthetic.model import build_model
from loop.synthetic.shards import write_shards
from loop.synthetic.tokenizer import copy_tokenizer, guess_words, write_tiny_tokenizer

__all__ = ["generate"]


def generate(directory: Path, *, geometry: str | Path = "tiny", seed: int = 0, tokenizer: Path | None = None) -> Path:
    """Write a checkpoint into `directory` and return it.

    `geometry` is "tiny", or a config.json (or its directory) of a dense Qwen3 or Qwen3.5 model. Tokenizer files come
    from `tokenizer`, else from beside the config.json; without any the server needs `--skip-tokenizer-init`. The same
    arguments give the same bytes. The directory appears complete or not at all; one that holds anything is never
    overwritten.
    """
    directory = Path(directory)
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise InputError(f"{directory} exists and is not empty", next="choose another directory, or remove this one")
    if tokenizer is not None and not Path(tokenizer).exists():
        raise InputError(f"no tokenizer at {tokenizer}", next="give a tokenizer.json or the directory that holds it")
    shape = load_geometry(geometry)
    directory.parent.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", dir=directory.parent))
    try:
        words = _write_texts(building, shape, geometry, tokenizer)
        write_shards(building, build_model(shape, words, seed))
        building.chmod(0o755)  # mkdtemp made it private
        building.replace(directory)
    except BaseException:
        shutil.rmtree(building, ignore_errors=True)
        raise
    return directory


def _write_texts(building: Path, shape: Geometry, geometry: str | Path, tokenizer: Path | None) -> list[int]:
    """config.json, generation_config.json and the tokenizer; returns the ids that may be generated."""
    words: list[int] | None
    if tokenizer is None and str(geometry) == "tiny":
        words = write_tiny_tokenizer(building)
    else:
        words = copy_tokenizer(Path(tokenizer or geometry), building, shape.vocab)
    (building / "config.json").write_text(json.dumps(shape.config, indent=2) + "\n", encoding="utf-8")
    greedy = {"do_sample": False, **{key: shape.config.get(key) for key in ("eos_token_id", "pad_token_id")}}
    (building / "generation_config.json").write_text(json.dumps(greedy, indent=2) + "\n", encoding="utf-8")
    if words is None:
        return guess_words(shape.vocab, shape.reserved)
    return [i for i in words if i not in shape.reserved]
