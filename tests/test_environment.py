"""What must stay as it is inside a round: machine, model and engine, read again before each session."""

from collections.abc import Callable
from pathlib import Path

import pytest

from loop.engines.fake import Fake
from loop.environment import Environment, changes, differences, read_environment
from loop.errors import UnfitError
from loop.host import Gpu
from loop.judge import judge
from loop.ledger import Round
from loop.watch import Watcher
from loop.workspace import Workspace
from tests.brackets import bracket, comparisons, host, same_session

GPU = Gpu(name="NVIDIA H200", uuid="GPU-1", memory_bytes=1 << 37, power_limit_w=700.0, max_sm_clock_mhz=1980.0)
BEFORE = Environment(host=host(), model_sha256="1" * 64, engine_version="0.5.23")


def environment(**fields: object) -> Environment:
    """What is here; `fields` of the host replace what they name."""
    return BEFORE.model_copy(update={"host": host(**fields)})


def test_the_same_environment_has_no_differences() -> None:
    """Nor have rounds of releases that did not record it."""
    assert {} == differences(BEFORE, BEFORE)
    assert {} == differences(BEFORE, None)
    assert {} == differences(None, BEFORE)


def test_a_difference_is_named_with_both_values() -> None:
    """Driver, engine, model; each setting of each GPU."""
    capped = GPU.model_copy(update={"power_limit_w": 500.0})

    assert {"driver": ("570", "575")} == differences(environment(driver="570"), environment(driver="575"))
    assert {"engine_version": ("0.5.23", "0.5.24")} == differences(
        BEFORE, BEFORE.model_copy(update={"engine_version": "0.5.24"})
    )
    assert {"gpu 0.power_limit_w": ("700.0", "500.0")} == differences(
        environment(gpus=(GPU,)), environment(gpus=(capped,))
    )
    assert {"gpu 1.uuid", "gpu 1.name", "gpu 1.memory_bytes", "gpu 1.power_limit_w", "gpu 1.max_sm_clock_mhz"} == set(
        differences(environment(gpus=(GPU, GPU)), environment(gpus=(GPU,)))
    )


def test_a_reboot_is_a_change() -> None:
    """Two rounds may have a boot between them, two sessions of one bracket may not."""
    assert {"boot_id": ("boot", "another")} == differences(BEFORE, environment(boot_id="another"))


def test_memory_that_a_virtual_machine_is_given_as_it_uses_it_spoils_no_round() -> None:
    """Two rounds with other memory are not comparable, though, and a GPU's memory is a setting."""
    grown = environment(memory_bytes=1 << 38)
    halved = GPU.model_copy(update={"memory_bytes": 1 << 36})

    assert {"memory_bytes"} == set(differences(BEFORE, grown))
    assert {} == changes(BEFORE, grown)
    assert {"gpu 0.memory_bytes"} == set(changes(environment(gpus=(GPU,)), environment(gpus=(halved,))))


def test_what_is_here_is_read_anew(model: Path) -> None:
    """An engine remembers its version: another instance is asked."""
    engine = Fake(python="python3")

    found = read_environment(engine, model)

    assert engine.version == found.engine_version
    assert found == read_environment(engine, model)


def test_a_model_that_is_gone_stops_the_round(tmp_path: Path) -> None:
    """There is nothing to serve."""
    with pytest.raises(UnfitError, match="cannot be read any more"):
        read_environment(Fake(python="python3"), tmp_path / "gone")


def test_a_changed_environment_is_the_verdict_whatever_was_measured(tmp_path: Path) -> None:
    """Before crashes, gates and numbers: none of them can be trusted."""
    sessions = [
        same_session(tmp_path, label).model_copy(update={"environment": environment(driver=driver)})
        for label, driver in (("A1", None), ("B", "575"), ("A2", "575"))
    ]
    seen = bracket(tmp_path, sessions, compared=comparisons(30.0)).model_copy(update={"environment": BEFORE})

    verdict = judge(seen).verdict

    assert ("invalid", "environment_changed") == (verdict.outcome, verdict.reason)
    assert "before B, driver had changed from None to 575" == verdict.text


def test_a_round_whose_model_changes_ends_there(
    run: Callable[..., Round], workspace: Workspace, model: Path, write_bundle: Callable[..., str]
) -> None:
    """Somebody writes into the checkpoint after A1: B is measured with another model, and nothing after it."""
    copy = workspace.root / "model"
    copy.mkdir()
    for path in model.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    write_bundle("idea", args={"inert_number": 3})

    class Meddler(Watcher):
        def session(self, label: str, *_: object) -> None:
            if label == "B":
                (copy / "generation_config.json").write_text("{}")

    round_ = run("idea", Meddler(), model=str(copy))

    assert round_.verdict is not None
    assert ("invalid", "environment_changed") == (round_.verdict.outcome, round_.verdict.reason)
    assert round_.verdict.text.startswith("before B, model_sha256 had changed from ")
    assert ["A1", "B"] == [session.label for session in round_.sessions]


@pytest.mark.xdist_group("noop")
def test_every_session_records_what_was_here(noop: tuple[Workspace, Round]) -> None:
    """So that the judgement can be repeated."""
    round_ = noop[1]

    for session in round_.sessions:
        assert session.environment is not None
        assert round_.host == session.environment.host
        assert round_.model.sha256 == session.environment.model_sha256
