"""`loop profile`: where a server spends its time."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from loop.commands import AsJson, BundleId, EngineName, Model, Port, Suite, make_plan, print_json, relative

if TYPE_CHECKING:
    from loop.plan import Plan
    from loop.profiles import Kind, Profile

KINDS: "tuple[Kind, ...]" = ("mapping", "formal")


def main(
    bundle: BundleId,
    suite: Suite = None,
    model: Model = None,
    engine: EngineName = None,
    port: Port = None,
    workload: Annotated[
        str | None, typer.Option(help="Whose prompts; default: the one the bundle expects to move, else the fullest.")
    ] = None,
    profiler: Annotated[
        list[str] | None,
        typer.Option(help="Only this one; may be repeated: torch_trace, py_spy, host_samples, gpu_samples, nsys, ncu."),
    ] = None,
    only: Annotated[
        str | None,
        typer.Option(help="Only this session: `mapping` (graphs off, stacks) or `formal` (as it is served)."),
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Decode steps, and prompts, in a trace.")] = 5,
    seconds: Annotated[float, typer.Option(min=0.5, help="Of mixed traffic, for what samples.")] = 8.0,
    out: Annotated[Path | None, typer.Option(help="Where files go; default: a new directory in ledger/raw/.")] = None,
    as_json: AsJson = False,
) -> None:
    """Profile a bundle in sessions of its own: traces, stacks of its processes, samples of the machine; never timed."""
    from loop.errors import InputError
    from loop.ledger import Ledger

    kinds = tuple(kind for kind in KINDS if only in (None, kind))
    if not kinds:
        raise InputError(f"no kind of session called {only!r}; known: {', '.join(KINDS)}")
    planned = make_plan(bundle, suite=suite, model=model, baseline="original", engine=engine, protocol="aba", port=port)
    with Ledger(planned.workspace.ledger).locked():  # nothing is measured while somebody profiles
        directory, profiles = _collect(planned, tuple(profiler or ()), kinds, workload, steps, seconds, out)
    if as_json:
        print_json({"directory": str(directory), "profiles": [one.document() for one in profiles]})
        return
    from loop import exhibits

    exhibits.show_profiles(profiles, relative(directory))


def _collect(
    planned: "Plan",
    names: tuple[str, ...],
    kinds: "tuple[Kind, ...]",
    workload: str | None,
    steps: int,
    seconds: float,
    out: Path | None,
) -> "tuple[Path, list[Profile]]":
    """Session by session; the record of them all lies beside their files."""
    import json
    import time

    from loop.digest import digest
    from loop.profiling import (
        Look,
        choose_profilers,
        choose_workload,
        default_profilers,
        profile_bench,
        profile_session,
    )
    from loop.progress import PlainWatcher

    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    name = f"P{stamp}-{planned.candidate.bundle}"
    directory = (out or planned.workspace.ledger / "raw" / name).resolve()
    bench = profile_bench(planned, directory, name)
    chosen = choose_workload(bench, workload, planned.bundle.expect)
    names = names or default_profilers(planned)
    watcher, profiles = PlainWatcher(), []
    for session in kinds:
        # What samples needs no second look, at a server without graphs.
        both = len(kinds) > 1 and session == "mapping"
        here = [n for n in names if n == "torch_trace"] if both else list(names)
        if not here:
            continue
        look = Look(workload=chosen, profilers=choose_profilers(here, session, steps), num_steps=steps, seconds=seconds)
        watcher.session(session, planned.candidate.bundle)
        profile = profile_session(session, session, planned.candidate, bench, look, watcher)
        profiles.append(digest(profile, bench.raw))
    directory.mkdir(parents=True, exist_ok=True)
    document = [profile.document() for profile in profiles]
    (directory / "profiles.json").write_text(json.dumps(document, indent=1, ensure_ascii=False), encoding="utf-8")
    return directory, profiles
