"""The prompt files that ship: what `workloads/` holds, made from seeds in this file."""

from types import MappingProxyType

from loop.prompts.checks import SMALL, correctness
from loop.prompts.store import Prompt
from loop.prompts.timed import Shape, mixed_shapes, traffic

# Changing a seed, a template or a word list changes the suites' hashes, and with them what rounds can be compared.
QUADRANTS_SEED = "quadrants visible 1"
SMOKE_SEED = "smoke visible 1"
H200_SEED = "h200 cut visible 1"

# A confirmation asks a quarter as many held-back ones, under a seed that is not in the repository.
QUADRANTS_COUNTS = MappingProxyType(
    {"normal": 40, "code": 34, "math": 30, "long_context": 16, "degenerate": 18, "adversarial": 18, "cjk": 18}
)
SMOKE_COUNTS = MappingProxyType(
    {"normal": 5, "code": 4, "math": 4, "long_context": 2, "degenerate": 3, "adversarial": 3, "cjk": 3}
)

H200_COUNTS = MappingProxyType(
    {"normal": 4, "code": 4, "math": 4, "long_context": 2, "degenerate": 2, "adversarial": 2, "cjk": 2}
)


def repeat_shape(count: int, input_tokens: int, output_tokens: int) -> tuple[Shape, ...]:
    """Equal shapes, so that the requests of one file differ in text alone; both lengths are in tokens."""
    return (Shape(input_tokens=input_tokens, output_tokens=output_tokens),) * count


def make_quadrants() -> dict[str, tuple[Prompt, ...]]:
    """By file name without its ending."""
    seed = QUADRANTS_SEED
    lengths = (128, 256, 512, 1024, 2048), (64, 128, 256, 512)
    return {
        "check": correctness(seed, QUADRANTS_COUNTS),
        "short_in_short_out": traffic(f"{seed} ss", "mixed", repeat_shape(8, 256, 128)),
        "short_in_long_out": traffic(f"{seed} sl", "chat", repeat_shape(3, 256, 1024)),
        "long_in_short_out": traffic(f"{seed} ls", "document", repeat_shape(3, 8192, 128)),
        "long_in_long_out": traffic(f"{seed} ll", "document", repeat_shape(2, 8192, 1024)),
        "reasoning": traffic(f"{seed} r", "reasoning", repeat_shape(2, 512, 2048)),
        "mixed_c4": traffic(f"{seed} c4", "mixed", mixed_shapes(f"{seed} c4", 16, *lengths)),
        "mixed_c8": traffic(f"{seed} c8", "mixed", mixed_shapes(f"{seed} c8", 32, *lengths)),
    }


def make_smoke() -> dict[str, tuple[Prompt, ...]]:
    """By file name without its ending; small enough for a tiny model on two CPU cores."""
    seed = SMOKE_SEED
    shapes = mixed_shapes(f"{seed} c4", 12, (32, 64, 128, 256), (16, 32, 64))
    return {
        "check": correctness(seed, SMOKE_COUNTS, SMALL),
        "short_in_long_out": traffic(f"{seed} sl", "chat", repeat_shape(4, 64, 96)),
        "long_in_short_out": traffic(f"{seed} ls", "document", repeat_shape(4, 512, 16)),
        "mixed_c4": traffic(f"{seed} c4", "mixed", shapes),
    }


def make_h200_cut() -> dict[str, tuple[Prompt, ...]]:
    """By file name without its ending; three of the quadrants' shapes, cut so that a session's traffic takes 30 s."""
    seed = H200_SEED
    shapes = mixed_shapes(f"{seed} c8", 16, (128, 256, 512, 1024, 2048), (64, 128, 256))
    return {
        "check": correctness(seed, H200_COUNTS),
        "short_in_long_out": traffic(f"{seed} sl", "chat", repeat_shape(2, 256, 384)),
        "long_in_short_out": traffic(f"{seed} ls", "document", repeat_shape(3, 8192, 64)),
        "mixed_c8": traffic(f"{seed} c8", "mixed", shapes),
    }


def make_files() -> dict[str, tuple[Prompt, ...]]:
    """The prompts of every stored file, by its path under `workloads/`."""
    suites = {"h200_cut": make_h200_cut(), "quadrants": make_quadrants(), "smoke": make_smoke()}
    return {f"{suite}/{name}.jsonl": prompts for suite, files in suites.items() for name, prompts in files.items()}
