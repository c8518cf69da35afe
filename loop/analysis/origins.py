"""Where work comes from: the Python function, the chain of modules and the operator that launched a kernel."""

import re
from dataclasses import dataclass

from loop.analysis.names import FRAME, module_kind, shorten_frame
from loop.analysis.trace import NONE, Ints, Trace

OURS = re.compile(r"^(?:sglang|sgl_kernel)/")
"""The engine's own code. Plugins and other engines come next, then libraries."""
LIBRARY = re.compile(
    r"^(?:torch|triton|flashinfer|functorch|numpy|contextlib|functools|threading|multiprocessing|importlib|<)"
)
CARRIER = re.compile(
    r"^sgl_kernel/|^sglang/srt/(?:layers/linear\.py|layers/quantization/|layers/utils/|custom_op|utils/)"
    r"|: (?:__call__|wrapper)$"
)
"""Functions that only pass a call on: the line that asked for the work is further out."""
LAYER = re.compile(r"(?:Layer|Block)(?:V?\d+)?$")
PROJECTIONS = tuple(
    (re.compile(parent), re.compile(own), name)
    for parent, own, name in (
        (r"", r"QKV", "qkv_proj"),
        (r"DeltaNet|Mamba|Linear\w*Att|KDA|GLA", r"Row", "out_proj"),
        (r"DeltaNet|Mamba|Linear\w*Att|KDA|GLA", r"Column|Replicated", "in_proj"),
        (r"MLP|Mlp|FeedForward|Experts", r"Merged|Column", "gate_up_proj"),
        (r"MLP|Mlp|FeedForward|Experts", r"Row", "down_proj"),
        (r"Moe|MoE", r"Replicated|Gate", "router"),
        (r"Attention", r"Row", "o_proj"),
        (r"", r"FusedMoE|Experts", "experts"),
        (r"", r"LogitsProcessor|LMHead", "lm_head"),
        (r"", r"Embedding", "embed_tokens"),
    )
)
"""A projection's usual name, by the classes of the module around it and of its own."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Who asked for a piece of work. What the trace does not tell is None or empty."""

    location: str | None = None
    """`sglang/srt/models/qwen3_5.py(542): _forward_input_proj`: the innermost function of the engine that did not
    merely pass the call on. The number is the line where that function begins."""
    modules: tuple[str, ...] = ()
    """Names of frames, outermost first, each with its instance: `nn.Module: RowParallelLinear_3`."""
    layer: int = NONE
    """The row of the frame of the decoder layer around it."""
    operator: str | None = None
    shapes: str | None = None
    dtypes: str | None = None

    @property
    def module(self) -> str | None:
        """Classes inside the layer, else the layer's, else those inside the model: `Qwen2MoeMLP > RowParallelLinear`.

        Without the layer's, because layers of two kinds may share the modules inside.
        """
        kinds = self._kinds
        first = next((place + 1 for place, kind in enumerate(kinds) if is_layer(kind)), 1)
        return " > ".join(kinds[min(first, len(kinds) - 1) :]) or None

    @property
    def layer_kind(self) -> str | None:
        """The class of the decoder layer around: `Qwen3_5LinearDecoderLayer`."""
        return next((kind for kind in self._kinds if is_layer(kind)), None)

    @property
    def projection(self) -> str | None:
        """`down_proj`, if the modules around tell."""
        kinds = self._kinds
        if not kinds:
            return None
        around = kinds[-2] if len(kinds) > 1 else ""
        return next((name for up, own, name in PROJECTIONS if own.search(kinds[-1]) and up.search(around)), None)

    @property
    def weight(self) -> str | None:
        """`2560x12288`: the shape of a matrix product's second operand, which says which weight it is."""
        return self.shapes.split(", ")[1] if self.shapes and ", " in self.shapes else None

    @property
    def _kinds(self) -> list[str]:
        return [kind for frame in self.modules if (kind := module_kind(frame))]


NOWHERE = Origin()


class Origins:
    """The origins in one trace, each frame looked at once."""

    def __init__(self, trace: Trace, parents: Ints) -> None:
        self._trace = trace
        self._parents = parents
        self._known: dict[int, Origin] = {NONE: NOWHERE}
        self._rank: dict[int, int] = {}

    def of(self, frame: int, operator: int) -> Origin:
        """Of work launched in a frame and an operator, each a row or -1."""
        around = self._of_frame(frame)
        if operator < 0:
            return around
        trace, row = self._trace, operator
        shape, dtype = int(trace.operators.shape[row]), int(trace.operators.dtype[row])
        return Origin(
            location=around.location,
            modules=around.modules,
            layer=around.layer,
            operator=trace.names[trace.operators.name[row]],
            shapes=compact(trace.names[shape]) if shape >= 0 else None,
            dtypes=dtype_names(trace.names[dtype]) if dtype >= 0 else None,
        )

    def _of_frame(self, frame: int) -> Origin:
        """From the top of the stack down, so that what frames share is found once."""
        pending = []
        while frame not in self._known:
            pending.append(frame)
            frame = int(self._parents[frame])
        for row in reversed(pending):
            self._known[row] = self._extend(self._known[int(self._parents[row])], row)
            frame = row
        return self._known[frame]

    def _extend(self, around: Origin, row: int) -> Origin:
        name = int(self._trace.frames.name[row])
        text = self._trace.names[name]
        if kind := module_kind(text):
            starts_layer = around.layer < 0 and is_layer(kind)
            return Origin(around.location, (*around.modules, text), row if starts_layer else around.layer)
        if self._rank_of(name) < self._rank_of_text(around.location):
            return around
        return Origin(shorten_frame(text), around.modules, around.layer)

    def _rank_of(self, name: int) -> int:
        if name not in self._rank:
            self._rank[name] = self._rank_of_text(shorten_frame(self._trace.names[name]))
        return self._rank[name]

    @staticmethod
    def _rank_of_text(frame: str | None) -> int:
        """How well a frame tells where work comes from; of equals the inner one does it better."""
        if frame is None or not FRAME.match(frame):
            return 0
        if LIBRARY.match(frame):
            return 1
        if not OURS.match(frame):
            return 2
        return 3 if CARRIER.search(frame) else 4


def is_layer(kind: str) -> bool:
    """Whether a module's class is one of the model's layers."""
    return bool(LAYER.search(kind))


def compact(shapes: str) -> str:
    """`1x2560, 2560x12288` of `[[1,2560],[2560,12288],[]]`; scalars are left out."""
    found = re.findall(r"\[((?:\d+,)*\d+)\]", shapes)
    return ", ".join(shape.replace(",", "x") for shape in found)


def dtype_names(types: str) -> str:
    """`c10::BFloat16, float` of `["c10::BFloat16","float","Scalar",""]`."""
    return ", ".join(t for t in re.findall(r'"([^"]*)"', types) if t and "Scalar" not in t)
