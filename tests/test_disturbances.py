"""Caveats about the machine, from conditions written by hand."""

from pathlib import Path

import pytest

from loop.caveats import Caveat
from loop.conditions import Conditions, GpuConditions, GpuProcess, Spread
from loop.disturbances import find_disturbances
from loop.judge import judge
from loop.processes import BusyProcess, CpuShare
from loop.session import Session
from tests.brackets import bracket, comparisons, same_session

QUIET = CpuShare(elapsed_s=60.0, other_cores=0.1, stolen_cores=0.0, busiest=())
GPU = GpuConditions(
    index=0,
    name="NVIDIA H200",
    uuid="GPU-1",
    sm_clock_mhz=Spread(low=1950, median=1980, high=1980),
    power_w=None,
    temperature_c=None,
    memory_before_bytes=0,
    memory_after_bytes=0,
    limited_pct={"gpu_idle": 20.0, "applications_clocks_setting": 80.0},
    others=(),
)


def conditions(cpu: CpuShare | None = QUIET, *gpus: GpuConditions) -> Conditions:
    """A machine that was nearly left alone."""
    return Conditions(
        load_before=0.0,
        load_after=0.5,
        free_memory_before_bytes=1 << 34,
        free_memory_low_bytes=1 << 33,
        num_readings=60,
        cpu=cpu,
        gpus=gpus,
    )


def clocked(median_mhz: float) -> GpuConditions:
    """The GPU at another median clock."""
    return GPU.model_copy(update={"sm_clock_mhz": Spread(low=900, median=median_mhz, high=1980)})


def found(root: Path, **by_label: Conditions | None) -> list[Caveat]:
    """The disturbances of sessions with these conditions."""
    sessions: list[Session] = [
        same_session(root, label).model_copy(update={"conditions": seen}) for label, seen in by_label.items()
    ]
    return list(find_disturbances(sessions))


def test_a_quiet_machine_has_none(tmp_path: Path) -> None:
    """Nor has a session that recorded no conditions."""
    assert [] == found(tmp_path, A1=conditions(QUIET, GPU), B=conditions(None), A2=None)


def test_other_load_names_sessions_and_the_biggest_process(tmp_path: Path) -> None:
    """Over all sessions that it disturbed."""
    small, big = (
        BusyProcess(pid=7, name="cron", cores=0.1),
        BusyProcess(pid=8, name="stress", cores=0.9),
    )
    loud = QUIET.model_copy(update={"other_cores": 1.04, "busiest": (big, small)})
    louder = QUIET.model_copy(update={"other_cores": 0.31, "busiest": (small,)})

    (caveat,) = found(tmp_path, A1=conditions(loud), B=conditions(), A2=conditions(louder))

    assert "other_load" == caveat.code
    assert caveat.text.endswith("while traffic was timed: A1 1.0, A2 0.3 cores; the biggest is stress (pid 8) with 0.9")
    assert "loop doctor" in caveat.advice


def test_load_that_cannot_be_seen_is_still_load(tmp_path: Path) -> None:
    """Another container's."""
    (caveat,) = found(tmp_path, A1=conditions(QUIET.model_copy(update={"other_cores": 2.0})))

    assert caveat.text.endswith("A1 2.0 cores; the biggest is none that can be seen from here")


def test_an_average_over_less_than_a_second_is_no_evidence(tmp_path: Path) -> None:
    """The kernel counts in hundredths."""
    assert [] == found(tmp_path, A1=conditions(QUIET.model_copy(update={"other_cores": 2.0, "elapsed_s": 0.5})))


def test_stolen_time_is_a_disturbance_of_its_own(tmp_path: Path) -> None:
    """Nobody on this machine can end it."""
    (caveat,) = found(tmp_path, B=conditions(QUIET.model_copy(update={"stolen_cores": 0.7})))

    assert "cpu_stolen" == caveat.code
    assert caveat.text.endswith("B 0.7 cores")


def test_a_shared_gpu_names_the_process_once(tmp_path: Path) -> None:
    """With every session in which it was there."""
    python = GpuProcess(pid=7, name="python", memory_bytes=3 << 30)
    nobody = GpuProcess(pid=9, name=None, memory_bytes=None)
    shared = GPU.model_copy(update={"others": (python, nobody)})

    caveats = found(tmp_path, A1=conditions(QUIET, shared), B=conditions(QUIET, shared), A2=conditions(QUIET, GPU))

    assert ["gpu_shared", "gpu_shared"] == [caveat.code for caveat in caveats]
    assert "GPU 0 also ran python (pid 7, 3.0 GiB) in A1, B" == caveats[0].text
    assert "GPU 0 also ran a process of another container (pid 9) in A1, B" == caveats[1].text


def test_throttling_is_said_with_its_reason_and_share(tmp_path: Path) -> None:
    """Idle and chosen clocks are no throttling."""
    capped = GPU.model_copy(update={"limited_pct": {"gpu_idle": 10.0, "sw_power_cap": 62.0}})

    (caveat,) = found(tmp_path, A1=conditions(QUIET, GPU), B=conditions(QUIET, capped), A2=conditions(QUIET, capped))

    assert "throttled" == caveat.code
    assert "sw_power_cap held the clocks of GPU 0 down in 62 % of B, 62 % of A2" == caveat.text


@pytest.mark.parametrize(("median_mhz", "differs"), [(1965.0, False), (1950.0, True)])
def test_clocks_that_differ_by_more_than_a_percent(tmp_path: Path, median_mhz: float, *, differs: bool) -> None:
    """Between sessions, not within one."""
    caveats = found(
        tmp_path,
        A1=conditions(QUIET, clocked(1980.0)),
        B=conditions(QUIET, clocked(median_mhz)),
        A2=conditions(QUIET, clocked(1980.0)),
    )

    assert differs == bool(caveats)
    if differs:
        assert "clocks_differ" == caveats[0].code
        assert "the median SM clock of GPU 0 differs by 1.5 %: A1 1980, B 1950, A2 1980 MHz" == caveats[0].text


def test_they_are_caveats_of_the_round(tmp_path: Path) -> None:
    """They weaken the verdict and do not change it."""
    loud = conditions(QUIET.model_copy(update={"other_cores": 1.5}))
    quiet = [same_session(tmp_path, label) for label in ("A1", "B", "A2")]
    disturbed = [session.model_copy(update={"conditions": loud}) for session in quiet]

    before, after = (judge(bracket(tmp_path, sessions, compared=comparisons())) for sessions in (quiet, disturbed))

    assert before.verdict == after.verdict
    assert [*before.caveats, *find_disturbances(disturbed)] == list(after.caveats)
    assert "other_load" in {caveat.code for caveat in after.caveats}


def test_memory_that_a_server_left_on_a_gpu_is_named(tmp_path: Path) -> None:
    """What the driver keeps for itself is none."""
    kept = GPU.model_copy(update={"memory_after_bytes": 1 << 20})
    left = GPU.model_copy(update={"memory_after_bytes": 21 << 30})

    (caveat,) = found(tmp_path, A1=conditions(QUIET, kept), B=conditions(QUIET, left), A2=conditions(QUIET, kept))

    assert "gpu_memory_left" == caveat.code
    assert "21.0 GiB by B" in caveat.text
    assert "A1" not in caveat.text


def test_a_kernel_that_was_compiled_while_traffic_was_timed_is_named(tmp_path: Path) -> None:
    """Its seconds are in somebody's latency."""
    compiled = conditions(QUIET, GPU).model_copy(update={"num_compiled_files": 12})
    quiet = conditions(QUIET, GPU).model_copy(update={"num_compiled_files": 0})

    (caveat,) = found(tmp_path, A1=compiled, B=quiet, A2=quiet)

    assert "compiled_while_timed" == caveat.code
    assert "12 files in A1" in caveat.text
