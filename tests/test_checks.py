"""What `loop doctor` looks at, on workspaces that are right and on workspaces that are not."""

import json
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from loop.checkpoint import find_gaps
from loop.checks import Check, Finding, Setup
from loop.checks.client import Client
from loop.checks.clocks import Clocks
from loop.checks.device import Device as DeviceCheck
from loop.checks.disk import Disk
from loop.checks.engine import EngineCheck
from loop.checks.git import Git
from loop.checks.launcher import Launcher
from loop.checks.leftovers import Leftovers
from loop.checks.load import Load
from loop.checks.memory import Memory
from loop.checks.model import Model
from loop.checks.python import Python
from loop.doctor import Diagnosis, examine, load_checks
from loop.errors import LoopError
from loop.host import MARK, Gpu, free_port
from loop.installation import Installation, read_installation
from loop.ledger import Ledger, Round
from loop.workspace import Workspace
from tests.beside import SPIN, beside, use_cpu
from tests.brackets import host
from tests.conftest import make_workspace
from tests.nvml import Device, Nvml

NO_GPU = Nvml(driver=False)
H200 = Gpu(name="NVIDIA H200", uuid="GPU-1", memory_bytes=1 << 37, power_limit_w=700.0, max_sm_clock_mhz=1980.0)


@pytest.fixture
def setup(workspace: Workspace) -> Setup:
    """A fresh workspace on a machine without a GPU."""
    return Setup(workspace=workspace, nvml=NO_GPU)


@pytest.fixture
def copy(setup: Setup, model: Path, tmp_path: Path) -> Setup:
    """The same with a checkpoint that a test may spoil."""
    shutil.copytree(model, tmp_path / "model")
    return setup.model_copy(update={"model_path": str(tmp_path / "model")})


def only(check: Check, setup: Setup) -> Finding:
    """The check's only finding."""
    (finding,) = check.find(setup)
    return finding


# software


def test_this_python_is_one_that_loop_is_tested_with(setup: Setup) -> None:
    """The tests run on it."""
    assert "ok" == only(Python(), setup).status


def test_the_engine_is_named_with_everything_that_makes_it_fast(setup: Setup) -> None:
    """Torch and kernels, read without importing them."""
    finding = only(EngineCheck(), setup.model_copy(update={"engine_name": "sglang"}))

    assert "ok" == finding.status
    assert "sglang 0.5.23 with torch " in finding.text
    assert "triton " in finding.text


def test_the_fake_engine_needs_nothing(setup: Setup) -> None:
    """It is part of loop."""
    assert only(EngineCheck(), setup).text.startswith("fake ")


def test_an_installation_says_which_cuda_torch_was_built_for() -> None:
    """From a file of torch's own."""
    found = read_installation(sys.executable)

    assert "torch" in found.packages
    assert found.torch_cuda is None or found.torch_cuda[0].isdigit()


def test_a_python_that_cannot_be_run_is_named_with_the_way_out(tmp_path: Path) -> None:
    """It is a setting."""
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho no library >&2\nexit 3\n")
    broken.chmod(0o755)

    for python, why in ((str(tmp_path / "none"), "No such file"), (str(broken), "no library")):
        with pytest.raises(LoopError, match=why) as caught:
            read_installation(python)
        assert "LOOP_PYTHON" in caught.value.next


# machine


def test_a_machine_without_a_gpu_is_its_processor(setup: Setup) -> None:
    """Which is enough for a tiny model."""
    vars(setup)["host"] = host()

    assert "cpu: a cpu, 2 CPUs, no GPU" == only(DeviceCheck(), setup).text
    assert "no GPU to ask" == only(Clocks(), setup).text


@pytest.mark.parametrize(("cuda", "status"), [(13020, "ok"), (13000, "ok"), (12090, "unfit")])
def test_torch_must_be_built_for_a_cuda_that_the_driver_runs(setup: Setup, cuda: int, status: str) -> None:
    """Of the same major version at most."""
    gpus = setup.model_copy(update={"nvml": Nvml(Device(), cuda=cuda)})
    vars(gpus)["host"] = host(device="NVIDIA H200", driver="570", gpus=(H200,))
    vars(gpus)["installation"] = Installation(python="3.11.7", packages={}, torch_cuda="13.0")

    finding = only(DeviceCheck(), gpus)

    assert status == finding.status
    assert "1 x NVIDIA H200, driver 570, CUDA 1" in finding.text
    assert "torch for 13.0" in finding.text


def test_a_gpu_that_cannot_be_asked_is_a_warning(setup: Setup) -> None:
    """Rounds lose their clocks then."""
    vars(setup)["host"] = host(device="NVIDIA H200", driver="570", gpus=(H200,))

    finding = only(DeviceCheck(), setup)

    assert "warn" == finding.status
    assert "nvidia-ml-py" in finding.action


def test_clocks_that_are_held_down_are_named_with_the_reason(setup: Setup) -> None:
    """An idle GPU is not held down."""
    nvml = Nvml(Device(uuid="GPU-1", reasons=0x1, clock_mhz=345), Device(uuid="GPU-2", reasons=0x20, clock_mhz=900))

    idle, hot = Clocks().find(setup.model_copy(update={"nvml": nvml}))

    assert ("ok", "GPU 0: SM 345 of 1980 MHz, 40 °C, 350 W") == (idle.status, idle.text)
    assert "warn" == hot.status
    assert hot.text.endswith("held down by sw_thermal_slowdown")


def test_free_memory_must_hold_the_weights(copy: Setup) -> None:
    """Main memory without a GPU; little more than the weights is a warning."""
    assert "ok" == only(Memory(), copy).status
    assert "warn" == only(Memory(comfortable=1e9), copy).status
    with (copy.model / "huge.bin").open("wb") as file:
        file.truncate(1 << 42)  # sparse
    assert "unfit" == only(Memory(), copy).status


def test_free_memory_of_gpus_is_their_sum(copy: Setup) -> None:
    """How a model is cut is the engine's choice."""
    with (copy.model / "huge.bin").open("wb") as file:
        file.truncate(150 << 30)

    one = only(Memory(), copy.model_copy(update={"nvml": Nvml(Device())}))
    two = only(Memory(), copy.model_copy(update={"nvml": Nvml(Device(uuid="GPU-1"), Device(uuid="GPU-2"))}))

    assert ("unfit", "ok") == (one.status, two.status)
    assert "280.0 GiB free on the GPUs, the weights take 150.0 GiB" == two.text


def test_whoever_is_busy_is_named(setup: Setup) -> None:
    """With its process id."""
    with beside(sys.executable, "-S", "-c", SPIN) as busy:
        use_cpu(busy, 0.05)
        finding = next(iter(Load(seconds=0.5, max_cores=1e-6, num_named=10_000, min_named_cores=1e-6).find(setup)))

    assert "warn" == finding.status
    assert f"(pid {busy.pid})" in finding.text


def test_a_process_on_the_gpu_is_named(setup: Setup) -> None:
    """Nothing of a round runs while the doctor looks."""
    nvml = Nvml(Device(compute={1: 2 << 30}))

    *_, finding = Load(seconds=0.01).find(setup.model_copy(update={"nvml": nvml}))

    assert "warn" == finding.status
    assert finding.text.endswith("(pid 1) is on GPU 0 with 2.0 GiB")


def test_ledger_and_runtime_directory_must_be_writable(
    setup: Setup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file stands where a directory should be: also root cannot write there."""
    assert {"ok"} == {finding.status for finding in Disk(min_free_bytes=1).find(setup)}
    assert {"warn"} == {finding.status for finding in Disk(min_free_bytes=1 << 60).find(setup)}
    (tmp_path / "file").touch()
    monkeypatch.setenv("LOOP_RUNTIME_DIR", str(tmp_path / "file" / "runtime"))

    _, runtime = Disk(min_free_bytes=1).find(setup)

    assert "unfit" == runtime.status
    assert "LOOP_RUNTIME_DIR" in runtime.action


def test_what_outlived_its_round_is_unfit_and_what_may_be_running_is_a_warning(
    setup: Setup, noop: tuple[Workspace, Round]
) -> None:
    """The ledger knows which rounds are its own, and its lock whether one of them runs."""
    workspace, round_ = noop
    stored = setup.model_copy(update={"workspace": workspace})
    check = Leftovers(port=free_port())

    def of(pid: int, findings: list[Finding]) -> list[Finding]:
        return [finding for finding in findings if str(pid) in finding.text]

    with beside(sys.executable, "-S", "-c", SPIN, environ={MARK: f"{round_.id}/A1"}) as left:
        while MARK not in left.environ():
            use_cpu(left, 0.01)
        (known,) = of(left.pid, list(check.find(stored)))
        (unknown,) = of(left.pid, list(check.find(setup)))
        with Ledger(workspace.ledger).locked():
            (running,) = of(left.pid, list(check.find(stored)))

    assert ("unfit", "warn", "warn") == (known.status, unknown.status, running.status)
    assert f"kill -9 {left.pid}" == known.action
    assert [] == of(left.pid, list(check.find(stored)))


def test_an_occupied_production_port_is_a_warning(setup: Setup) -> None:
    """Rounds choose another one."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        *_, finding = Leftovers(port=port).find(setup)

    assert "warn" == finding.status
    assert str(port) in finding.text


# workspace


def test_a_changed_judge_is_a_warning(setup: Setup, workspace: Workspace) -> None:
    """Rounds can be run, and not promoted."""
    assert "not a git checkout" in only(Git(), setup).text
    root = str(workspace.root)
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "commit.gpgsign=false"]
    for arguments in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "-m", "first"]):
        subprocess.run(["git", "-C", root, *identity, *arguments], check=True)
    assert "ok" == only(Git(), setup).status
    (workspace.workloads / "brief" / "suite.toml").write_text("")

    finding = only(Git(), setup)

    assert "warn" == finding.status
    assert finding.text.startswith("workloads/brief/suite.toml not committed")


def test_the_launcher_is_run_up_to_the_start_of_a_server(setup: Setup, workspace: Workspace) -> None:
    """A syntax error, or a launch.py that is not there."""
    assert "ok" == only(Launcher(), setup).status
    (workspace.root / "loop" / "launch.py").unlink()
    assert "unfit" == only(Launcher(), setup).status
    workspace.launcher.write_text("if then\n")

    finding = only(Launcher(), setup)

    assert "unfit" == finding.status
    assert "syntax error" in finding.text


def test_a_whole_model_is_described(setup: Setup) -> None:
    """By architecture, size and hash."""
    finding = only(Model(), setup)

    assert "ok" == finding.status
    assert finding.text.startswith("Qwen3ForCausalLM, ")
    assert "in 1 file, sha256 " in finding.text


def test_a_model_with_gaps_is_unfit(copy: Setup) -> None:
    """Each gap is named: a shard, a tokenizer, the end of a file."""
    model = copy.model
    (weights,) = model.glob("*.safetensors")
    assert [] == list(find_gaps(model))
    index = {"weight_map": {"a": weights.name, "b": "model-00002-of-00002.safetensors"}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    weights.write_bytes(weights.read_bytes()[:-7])
    (model / "tokenizer.json").unlink()

    finding = only(Model(), copy)

    assert "unfit" == finding.status
    assert "tokenizer.json is missing" in finding.text
    assert "(and 2 more)" in finding.text
    assert [
        "tokenizer.json is missing, and requests are sent as token ids",
        "model-00002-of-00002.safetensors is missing, model.safetensors.index.json names it",
        f"{weights.name} was cut off, 7 bytes are missing",
    ] == list(find_gaps(model))


def test_a_header_that_is_cut_off_and_no_weights_at_all(copy: Setup) -> None:
    """An interrupted download may have written 100 bytes, or none."""
    (weights,) = copy.model.glob("*.safetensors")
    weights.write_bytes(weights.read_bytes()[:100])
    assert f"{weights.name} was cut off" in only(Model(), copy).text
    weights.unlink()
    assert "it has no weights" in only(Model(), copy).text


def test_a_config_that_is_no_json_is_unfit(copy: Setup) -> None:
    """And named."""
    (copy.model / "config.json").write_text("{")

    assert "cannot be read" in only(Model(), copy).text


# rehearsal


def test_the_client_must_be_faster_than_what_it_measures(setup: Setup) -> None:
    """With nothing stored the need is assumed, and the assumption said."""
    easy = only(Client(seconds=0.2, assumed_tokens_per_s=1.0), setup)
    hard = only(Client(seconds=0.2, assumed_tokens_per_s=1e9), setup)

    assert ("ok", "warn") == (easy.status, hard.status)
    assert "brief needs 4 (assumed: 4 streams of 1)" in easy.text


@pytest.mark.xdist_group("noop")
def test_the_fastest_stored_step_says_what_is_needed(noop: tuple[Workspace, Round]) -> None:
    """Of the same suite."""
    finding = only(Client(seconds=0.2), Setup(workspace=noop[0]))

    assert "(the most in stored rounds)" in finding.text


# all of them


def test_checks_come_by_stage_and_the_one_that_loads_the_machine_is_last() -> None:
    """So that it does not disturb the others."""
    names = [check.name for check in load_checks()]

    assert {"engine", "model", "ledger", "git", "load", "clocks"} <= set(names)
    assert "client" == names[-1]


def test_an_error_inside_a_check_is_a_finding(tmp_path: Path, model: Path) -> None:
    """With the error's own way out; the others are still asked."""
    workspace = make_workspace(tmp_path / "w", model)
    (workspace.workloads / "brief" / "check.jsonl").unlink()
    (workspace.ledger / "chain").mkdir(parents=True)
    (workspace.ledger / "chain" / "x.jsonl").write_text("nonsense\n")
    heard: list[str] = []

    diagnosis = examine(Setup(workspace=workspace, model_path=str(tmp_path), nvml=NO_GPU), heard.append)

    unfit = {finding.check: finding for finding in diagnosis.findings if finding.status == "unfit"}
    assert {"client", "ledger", "memory", "model"} <= unfit.keys()
    assert "check.jsonl is missing" in unfit["client"].text
    assert "python -m loop.prompts" in unfit["client"].action
    assert [check.name for check in load_checks()] == heard
    assert not diagnosis.fit


def test_a_warning_forbids_nothing() -> None:
    """It only weakens."""
    warning = Finding(check="load", status="warn", text="busy", action="wait")

    assert Diagnosis(findings=(warning,)).fit
    assert {"warn": 1} == Diagnosis(findings=(warning,)).counts
