"""Flattening: a bundle with all its parents applied, its files read, its diffs resolved to whole files."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from loop.bundles import SHIPPED, Bundle, read_bundle
from loop.content import AppliesTo, Content
from loop.effective import Effective, Files
from loop.elements import MODULE, RESERVED, BuiltKernel, Engaged, Kernel, LoadedPlugin, Model, Plugin, Transform
from loop.errors import BundleError
from loop.plugins import closest
from loop.record import Record
from loop.replacement import Installed, Replacement, refuse_changed
from loop.sources import Sources

Named = TypeVar("Named", bound=Record)


class Flattened(Record):
    """A bundle together with the content that its lineage gives it."""

    bundle_id: str
    bundle: Bundle
    lineage: tuple[str, ...]
    content: Content
    files: dict[str, bytes] = {}
    """sha256 → content of every file that the content names."""
    origins: dict[str, str] = {}
    """`args.x` or `env.X` → the bundle of the lineage that sets it; `shipped` for what came with shipped content."""

    @property
    def sha256(self) -> str:
        """The bundle's identity."""
        return self.content.digest()


def _nothing(_: Sequence[str]) -> Mapping[str, str | None]:
    return {}


def flatten(
    candidates: Path,
    bundle_id: str,
    *,
    engine: str,
    shipped: Effective | None,
    original: str,
    shipped_files: Files | None = None,
    installed: Installed = _nothing,
) -> Flattened:
    """The bundle with all its parents applied, the farthest first.

    `parent = "shipped"` is `shipped`'s content with `shipped_files`, or `original`'s where nothing is shipped. Diffs
    and overlays are resolved against what `installed` finds. Raises BundleError on a missing parent or a cycle, and
    for everything about its files that does not fit.
    """
    chain: list[tuple[str, Bundle]] = []
    content = Content(engine=engine, args={}, env={}, numerics="exact", applies_to=AppliesTo())
    files: dict[str, bytes] = {}
    origins: dict[str, str] = {}
    lineage: list[str] = []
    name: str | None = bundle_id
    while name is not None:
        if name == SHIPPED and shipped is not None:
            content, lineage = shipped.content, [*lineage, SHIPPED, *shipped.lineage]
            files = dict(shipped_files or {})
            origins = dict.fromkeys(_settings(content.args, content.env), SHIPPED)
            refuse_changed(content.replaced, installed, bundle_id)
            break
        name = original if name in (SHIPPED, "original") else name
        if name in lineage:
            raise BundleError(f"bundle {bundle_id!r} is its own parent: {' -> '.join([*lineage, name])}")
        bundle = read_bundle(candidates, name)
        chain.append((name, bundle))
        lineage.append(name)
        name = bundle.parent
    for child_id, child in reversed(chain):
        sources = Sources(candidates / child_id, child_id)
        content = apply(content, child, sources, files=files, installed=installed)
        files |= sources.files
        origins |= dict.fromkeys(_settings(child.server.args, child.server.env), child_id)
    return Flattened(
        bundle_id=bundle_id,
        bundle=chain[0][1],
        lineage=tuple(lineage),
        content=content,
        files={sha256: files[sha256] for sha256 in content.file_hashes if sha256 in files},
        origins=origins,
    )


def apply(parent: Content, child: Bundle, sources: Sources, *, files: Files, installed: Installed) -> Content:
    """`child` over `parent`: its options and its modules win, `unset` drops the parent's options.

    The child's files are kept in `sources`; `files` are the parent's.
    """
    args = _arguments(parent, child, sources.bundle_id)
    replacement = Replacement(sources, parent.replaced, files, installed)
    plugins = _merge(parent.plugins, [_plugin(plugin, sources) for plugin in child.plugin], lambda p: p.module, sources)
    kernels = _merge(parent.kernels, [_kernel(kernel, sources) for kernel in child.kernel], lambda k: k.name, sources)
    _refuse_clashes(plugins, kernels, child, sources, installed)
    rank = ["exact", "near", "lossy"]
    return Content(
        engine=parent.engine,
        args=args,
        env={**parent.env, **child.server.env},
        numerics=max(parent.numerics, child.numerics, key=rank.index),
        applies_to=_narrow(parent.applies_to, child.applies_to),
        replaced=replacement.apply(child.patch, child.overlay),
        plugins=plugins,
        kernels=kernels,
        transforms=(*parent.transforms, *(_transform(model, sources) for model in child.model)),
        engaged=_unique((*parent.engaged, *child.engaged)),
    )


def _settings(args: Mapping[str, Any], env: Mapping[str, str]) -> list[str]:
    """The names of what a bundle sets: `args.x` and `env.X`."""
    return [*(f"args.{name}" for name in args), *(f"env.{name}" for name in env)]


def _arguments(parent: Content, child: Bundle, child_id: str) -> dict[str, Any]:
    absent = [name for name in child.server.unset if name not in parent.args]
    if absent:
        raise BundleError(
            f"{child_id}: unset names {', '.join(absent)}, which its parent does not set"
            f"{closest(absent[0], list(parent.args))}"
        )
    both = sorted(set(child.server.unset) & set(child.server.args))
    if both:
        raise BundleError(f"{child_id}: {', '.join(both)} is both set and unset")
    kept = {name: value for name, value in parent.args.items() if name not in child.server.unset}
    return {**kept, **child.server.args}


def _narrow(parent: AppliesTo, child: AppliesTo) -> AppliesTo:
    """The child's target where it names one, the parent's elsewhere."""
    return AppliesTo(
        sglang=child.sglang or parent.sglang,
        gpu=child.gpu or parent.gpu,
        model_sha256=child.model_sha256 or parent.model_sha256,
    )


def _merge(
    parent: Sequence[Named], child: Sequence[Named], name: Callable[[Named], str], sources: Sources
) -> tuple[Named, ...]:
    """The parent's, replaced by the child's of the same name, then the child's others."""
    twice = [found for found, number in Counter(map(name, child)).items() if number > 1]
    if twice:
        raise sources.refusal(f"{twice[0]} is declared twice")
    merged: dict[str, Named] = {name(item): item for item in (*parent, *child)}
    return tuple(merged.values())


def _unique(engaged: Sequence[Engaged]) -> tuple[Engaged, ...]:
    return tuple({(item.kind, item.pattern): item for item in engaged}.values())


def _plugin(plugin: Plugin, sources: Sources) -> LoadedPlugin:
    sha256 = sources.keep_module(plugin.file, plugin.entry)
    return LoadedPlugin(module=plugin.module, entry=plugin.entry, sha256=sha256)


def _kernel(kernel: Kernel, sources: Sources) -> BuiltKernel:
    module = PurePosixPath(kernel.module).stem
    if not kernel.module.endswith(".py") or not MODULE.fullmatch(module) or module in RESERVED:
        raise sources.refusal(f"kernel {kernel.name}: {kernel.module} cannot be a module: its stem is its name")
    hashes = {}
    for name in kernel.sources:
        hashes[name] = sources.keep_module(name) if name.endswith(".py") else sources.keep(name)
    return BuiltKernel(
        name=kernel.name,
        language=kernel.language,
        sources=hashes,
        module=module,
        module_sha256=sources.keep_module(kernel.module, kernel.entry),
        entry=kernel.entry,
        build=kernel.build,
        output=kernel.output,
        fallback=kernel.fallback,
    )


def _transform(model: Model, sources: Sources) -> Transform:
    sha256 = sources.keep_module(model.script, model.entry)
    return Transform(sha256=sha256, entry=model.entry, timeout_s=model.timeout_s, memory_gb=model.memory_gb)


def _refuse_clashes(
    plugins: Sequence[LoadedPlugin],
    kernels: Sequence[BuiltKernel],
    child: Bundle,
    sources: Sources,
    installed: Installed,
) -> None:
    """No two modules of one name, and none of a name that the server's Python has already."""
    names = [*(plugin.module for plugin in plugins), *(kernel.module for kernel in kernels)]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise sources.refusal(f"two modules are called {twice}")
    new = [*(plugin.module for plugin in child.plugin), *(PurePosixPath(kernel.module).stem for kernel in child.kernel)]
    for name, place in (installed(new) if new else {}).items():
        if place is not None:
            raise sources.refusal(f"the module {name} would hide an installed one, {place}; call it something else")
