"""`loop doctor` as a person and a program meet it."""

import json
import os
from collections.abc import Callable

from loop.ceiling import measure_ceiling
from loop.host import marked_processes
from loop.workspace import Workspace
from tests.conftest import Answer

Loop = Callable[..., Answer]


def test_the_doctor_says_what_it_found_in_eighty_columns(loop: Loop) -> None:
    """One line a finding, the sum last; the exit code is for programs."""
    done = loop("doctor")

    lines = done.stdout.splitlines()
    assert [] == [line for line in lines if len(line) > 80]
    assert {"engine", "model", "ledger", "client"} <= {line.split()[0] for line in lines if line.strip()}
    assert lines[-1].startswith("fit to measure: " if done.returncode == 0 else "not fit to measure: ")
    assert done.returncode in (0, 5)  # a server of another test may be alive
    assert "" == done.stderr


def test_a_machine_that_is_unfit_has_exit_code_5_and_says_what_mends_it(loop: Loop, workspace: Workspace) -> None:
    """As text and as JSON."""
    (workspace.root / "loop.toml").write_text(
        (workspace.root / "loop.toml").read_text().replace('suite = "brief"', 'suite = "bref"')
    )

    done, document = loop("doctor"), loop("doctor", "--json")

    assert (5, 5) == (done.returncode, document.returncode)
    assert "did you mean 'brief'?" in " ".join(done.stdout.split())
    found = json.loads(document.stdout)
    assert not found["fit"]
    assert "unfit" in {finding["status"] for finding in found["findings"] if finding["check"] == "client"}


def test_outside_a_workspace_the_doctor_says_how_to_make_one(loop: Loop, workspace: Workspace) -> None:
    """There is nothing to look at yet."""
    (workspace.root / "loop.toml").unlink()

    done = loop("doctor")

    assert 2 == done.returncode
    assert "loop init DIR" in done.stderr


def test_the_ceiling_is_measured_and_leaves_nothing() -> None:
    """Tokens are counted, the server is gone."""
    ceiling = measure_ceiling(0.1)

    assert ceiling.num_tokens >= 64 * 256
    assert ceiling.tokens_per_s > 0
    assert ceiling.cpu_us_per_token > 0
    assert [] == list(marked_processes(f"ceiling-{os.getpid()}/"))


def test_the_doctor_takes_what_a_round_takes(loop: Loop) -> None:
    """A typo is found here too, and every one of them at once."""
    done = loop("doctor", "--suite", "nosuite", "--model", "nomodel", "--engine", "noengine", "--json")

    assert 5 == done.returncode
    assert [] == [name for name in ("nosuite", "nomodel", "noengine") if name not in done.stdout]
