"""The tables, against dumb loops over the raw JSON of real traces and against traces made by hand."""

import gzip
from collections import defaultdict
from functools import lru_cache
from pathlib import Path
from typing import Any

import orjson
import pytest

from loop.analysis.capture import Capture
from loop.analysis.evidence import Evidence, gather, table_names
from loop.analysis.fusion import read_catalogue
from loop.analysis.pairing import open_captures
from loop.analysis.tables import Filled
from tests.conftest import REPOSITORY
from tests.traces import capture, event, frame, kernel, launch, model_pass, step

DATA = REPOSITORY / "tests" / "data"
GRAPH_ON, GRAPH_OFF, PREFILL = (
    DATA / f"h200-{name}.trace.json.gz" for name in ("decode-graph-on", "decode-graph-off", "prefill-2048")
)
REAL = (GRAPH_ON, GRAPH_OFF, PREFILL)
ATTENTION_LAYERS = list(range(3, 32, 4))
"""Of Qwen3.5-4B: every fourth layer has softmax attention, the others a gated delta net."""


@lru_cache(maxsize=1)
def real() -> dict[Path, Evidence]:
    """The evidence of the three excerpts, read together as `loop analyze DIR` reads them."""
    return {each.trace.path: gather(each) for each in open_captures(REAL)}


def table(evidence: Evidence, name: str) -> Filled:
    """One table."""
    return next(filled for filled in evidence.tables if filled.table == name)


def rows(path: Path, name: str, **where: Any) -> list[dict[str, Any]]:
    """The rows of a real trace's table that have these values."""
    return [row for row in table(real()[path], name).rows if all(row[key] == value for key, value in where.items())]


def raw_kernels(path: Path) -> list[dict[str, Any]]:
    """The device's events, straight from the JSON."""
    events = orjson.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    return [e for e in events if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]


@pytest.mark.parametrize("path", REAL, ids=lambda path: path.name)
def test_kernel_totals_are_those_of_a_dumb_loop_over_the_file(path: Path) -> None:
    """Every duration counts once, none is lost."""
    by_name: dict[str, float] = defaultdict(float)
    count: dict[str, int] = defaultdict(int)
    for each in raw_kernels(path):
        by_name[each["name"]] += each["dur"]
        count[each["name"]] += 1
    found = table(real()[path], "kernels").rows

    assert sum(by_name.values()) == pytest.approx(real()[path].total_us, abs=1e-3)
    assert sum(by_name.values()) == pytest.approx(sum(row["gpu_us"] for row in found), abs=1e-3)
    assert sum(count.values()) == sum(row["launches"] for row in found)
    for name in {row["kernel"] for row in found if row["share_pct"] > 10}:
        assert count[name] == sum(row["launches"] for row in found if row["kernel"] == name)
        assert by_name[name] == pytest.approx(sum(row["gpu_us"] for row in found if row["kernel"] == name), abs=1e-3)


@pytest.mark.parametrize("path", REAL, ids=lambda path: path.name)
@pytest.mark.parametrize(
    ("name", "share"),
    [("kernels", "share_pct"), ("idle_gaps", "share_pct"), ("host_functions", "self_pct"), ("operators", "self_pct")],
)
def test_shares_sum_to_100_with_the_row_other(path: Path, name: str, share: str) -> None:
    """In each stage."""
    sums: dict[str, float] = defaultdict(float)
    for row in table(real()[path], name).rows:
        sums[row.get("stage", "")] += row[share]

    assert sums
    assert all(total == pytest.approx(100) for total in sums.values())


@pytest.mark.parametrize("path", REAL, ids=lambda path: path.name)
def test_what_is_alone_and_what_is_hidden_is_all(path: Path) -> None:
    """Kernel table and overlap table agree on it, as on shares and places."""
    for row in table(real()[path], "kernels").rows:
        assert row["gpu_us"] == pytest.approx(row["exclusive_us"] + row["hidden_us"])
    for row in table(real()[path], "overlap").rows:
        assert 100 == pytest.approx(row["excl_pct"] + row["hid_pct"])
        same = [r for r in rows(path, "kernels", stage=row["stage"]) if r["short_name"] == row["kernel"]]
        assert sum(r["gpu_us"] for r in same) <= row["formal_us"] + 1e-6
        assert not same or row["python_scope"] in {r["python_location"] for r in same}


@pytest.mark.parametrize("path", REAL, ids=lambda path: path.name)
def test_step_time_is_busy_and_idle_and_idle_is_the_sum_of_gaps(path: Path) -> None:
    """On the device's clock."""
    passes = table(real()[path], "forward_passes").rows
    gaps = table(real()[path], "idle_gaps").rows

    assert all(row["step_us"] == pytest.approx(row["busy_us"] + row["idle_us"]) for row in passes)
    assert sum(row["idle_us"] for row in passes) == pytest.approx(sum(row["idle_us"] for row in gaps), abs=0.01)
    assert sum(row["late_us"] for row in passes) <= sum(row["idle_us"] for row in passes)


def test_a_decode_with_graphs_has_the_passes_and_the_idle_time_it_has() -> None:
    """Read off the trace by hand: two steps, 3.12 ms busy, the first 5.69 ms from first kernel to first kernel."""
    first, second = rows(GRAPH_ON, "forward_passes")

    assert ("decode", 1, 32) == (first["stage"], first["batch_size"], first["num_layers"])
    assert 5685.44 == pytest.approx(first["step_us"], abs=0.01)
    assert 3118.09 == pytest.approx(first["busy_us"], abs=0.01)
    assert 3127.17 == pytest.approx(second["busy_us"], abs=0.01)
    assert 453 == first["num_graph_kernels"]


def test_a_decode_without_graphs_is_launch_bound() -> None:
    """95 % idle, and the host late for it."""
    (row,) = rows(GRAPH_OFF, "forward_passes")
    advice = table(real()[GRAPH_OFF], "forward_passes").advice

    assert row["idle_pct"] == pytest.approx(94.6, abs=0.1)
    assert row["late_us"] > 0.9 * row["idle_us"]
    assert advice
    assert "CUDA graphs" in advice.next_edit


def test_kernels_in_graphs_have_the_places_of_the_mapping_trace() -> None:
    """Down to projection and shape; a weight's launches are those of its layers."""
    found = {
        (row["projection"], row["input_dims"]): (row["launches"], row["python_location"])
        for row in rows(GRAPH_ON, "kernels", category="gemm")
        if row["short_name"].startswith("nvjet")
    }

    assert found["gate_up_proj", "1x2560, 2560x18432"] == (64, "sglang/srt/models/qwen2_moe.py(210): forward")
    assert found["down_proj", "1x9216, 9216x2560"][0] == 64
    assert found["in_proj", "1x2560, 2560x12288"][0] == 48
    assert found["in_proj", "1x2560, 2560x64"][0] == 48
    assert found["qkv_proj", "1x2560, 2560x10240"][0] == 16
    assert found["lm_head", "1x2560, 2560x248320"][0] == 2
    assert all(row["source"] in ("mapping", None) for row in rows(GRAPH_ON, "kernels"))


def test_the_small_projection_runs_beside_the_large_one_in_graphs() -> None:
    """On a second stream, hidden nearly always, and slowed threefold by it."""
    small = rows(GRAPH_ON, "kernels", input_dims="1x2560, 2560x64")[0]
    alone = rows(GRAPH_OFF, "kernels", input_dims="1x2560, 2560x64")[0]

    assert small["hidden_us"] > 0.95 * small["gpu_us"]
    assert small["avg_us"] > 2.5 * alone["avg_us"]
    assert 0 == alone["hidden_us"]


@pytest.mark.parametrize("path", REAL, ids=lambda path: path.name)
def test_all_32_layers_are_found_numbered_and_typed(path: Path) -> None:
    """None lost, none off by one, each of its kind."""
    for number in {row["number"] for row in rows(path, "layers")}:
        layers = rows(path, "layers", number=number)
        kinds = [row["layer"] for row in layers if row["kind"] == "Qwen3_5AttentionDecoderLayer"]

        assert list(range(32)) == [row["layer"] for row in layers]
        assert ATTENTION_LAYERS == kinds
        assert ATTENTION_LAYERS == [row["layer"] for row in layers if row["attention_us"] > 0]
        assert all(1 == row["confidence"] for row in layers)


@pytest.mark.parametrize("path", REAL, ids=lambda path: path.name)
def test_every_layer_is_in_one_cluster(path: Path) -> None:
    """The delta nets in one, the attentions in another; a prefill's first layer prepares what the others share."""
    ids = [part for row in rows(path, "layer_clusters") for part in row["layer_ids"].split(", ")]
    numbers = [n for part in ids for n in range(int(part.split("-")[0]), int(part.split("-")[-1]) + 1)]

    assert list(range(32)) == sorted(numbers)
    assert [24, 8] == [row["num_layers"] for row in rows(path, "layer_clusters")][:2] or path == PREFILL


def test_layers_without_stacks_or_mapping_are_told_by_rhythm() -> None:
    """The same 32, from norms and activations alone, called after what they do."""
    (alone,) = open_captures([GRAPH_ON])
    found = table(gather(alone, ["layers"]), "layers").rows
    attention = [row["layer"] for row in found if row["kind"] == "attention, dense"]

    assert {"rhythm"} == {row["method"] for row in found}
    assert [*range(32), *range(32)] == [row["layer"] for row in found]
    assert ATTENTION_LAYERS * 2 == attention
    assert all(0.9 < row["confidence"] <= 1 for row in found)


def test_no_kernel_of_delta_nets_or_prefill_attention_is_filed_under_other() -> None:
    """They are a third of a prefill."""
    categories = {row["short_name"]: row["category"] for path in REAL for row in rows(path, "kernels")}
    del categories["other"]

    assert "other" not in categories.values()
    assert "attention" == categories["_fwd_kernel"]
    assert {"linear_attention"} == {
        category for name, category in categories.items() if any(word in name for word in ("delta", "gdn", "conv1d"))
    }


@pytest.mark.parametrize("path", REAL, ids=lambda path: path.name)
def test_no_fusion_is_proposed_that_this_model_cannot_have(path: Path) -> None:
    """It is dense, bfloat16 and on one device."""
    needs = {pattern.name: pattern.needs for pattern in read_catalogue()}

    assert table(real()[path], "fusion").rows
    assert all(not needs[row["pattern"]] for row in table(real()[path], "fusion").rows)


def test_fusions_in_place_are_seen_and_split_ones_counted() -> None:
    """24 delta nets, 8 attentions, two passes."""
    found = {row["pattern"]: row for row in rows(GRAPH_ON, "fusion")}

    assert "in place" == found["residual add and norm"]["status"]
    assert "in place" == found["gate, activation and multiply"]["status"]
    assert ("split", 48) == (
        found["convolution and delta rule of a decode"]["status"],
        found["convolution and delta rule of a decode"]["times"],
    )
    assert 16 == found["decode attention and reduction of its splits"]["times"]


def test_every_table_of_real_traces_ends_with_one_edit() -> None:
    """And says what to look at first."""
    for evidence in real().values():
        assert list(table_names()) == [filled.table for filled in evidence.tables]
        for filled in evidence.tables:
            assert filled.advice, filled.table
            assert filled.advice.look_first
            assert "\n" not in filled.advice.next_edit


def test_every_column_says_what_it_means() -> None:
    """In the file that is written for people who did not run it."""
    for filled in real()[GRAPH_ON].tables:
        assert all(filled.columns.values()), filled.table
        assert set(filled.brief) <= set(filled.columns)


# by hand


def test_prefill_kernels_do_not_leak_into_decode(tmp_path: Path) -> None:
    """Stages are told by the span that each kernel was launched in, not by where it ran."""
    events = [
        step("EXTEND", 0, 10), launch(2, 1), step("DECODE", 20, 10), launch(22, 2),
        kernel("k", 30, 50, correlation=1), kernel("k", 80, 5, correlation=2),
    ]  # fmt: skip
    found = {row["stage"]: row for row in table(gather(capture(tmp_path, events), ["kernels"]), "kernels").rows}

    assert (50, 1) == (found["prefill"]["gpu_us"], found["prefill"]["launches"])
    assert (5, 1) == (found["decode"]["gpu_us"], found["decode"]["launches"])


@pytest.mark.parametrize(
    ("mode", "stage"),
    [
        ("EXTEND", "prefill"),
        ("MIXED", "prefill"),
        ("DECODE", "decode"),
        ("TARGET_VERIFY", "verify"),
        ("VERIFY", "verify"),
        ("DRAFT", "draft"),
        ("DRAFT_EXTEND_V2", "draft"),
        ("IDLE", "idle"),
        ("SOMETHING_NEW", "all"),
    ],
)
def test_every_forward_mode_has_its_stage(mode: str, stage: str, tmp_path: Path) -> None:
    """Of any version; what is not known is not guessed."""
    (found,) = capture(tmp_path, model_pass(0, [["a"]], mode=mode)).passes

    assert (stage, mode, 1) == (found.stage, found.mode, found.batch_size)


def test_sampling_after_a_forward_belongs_to_it(tmp_path: Path) -> None:
    """What the scheduler's round launches beside it; what it launches outside of rounds belongs to none."""
    events = [
        event("user_annotation", "scheduler.run_batch", 0, 40), step("DECODE", 5, 10), launch(6, 1), launch(20, 2),
        launch(60, 3), *(kernel(f"k{n}", 100 + n, 1, correlation=n) for n in (1, 2, 3)),
    ]  # fmt: skip

    assert ["decode", "decode", "between"] == list(capture(tmp_path, events).work.stage)


def test_without_spans_passes_are_told_by_python_frames(tmp_path: Path) -> None:
    """As versions before 0.5.15 need it; an attention backend's function of the same name is none."""
    runner, backend = "sglang/srt/model_executor/model_runner.py(9)", "sglang/srt/layers/attention/triton_backend.py(7)"
    events = [
        frame(f"{runner}: forward_extend", 0, 10), frame(f"{backend}: forward_decode", 2, 4), launch(3, 1),
        frame(f"{runner}: forward_decode", 20, 10), launch(23, 2),
        kernel("a", 4, 1, correlation=1), kernel("b", 24, 1, correlation=2),
    ]  # fmt: skip

    assert ["prefill", "decode"] == [each.stage for each in capture(tmp_path, events).passes]


def test_the_files_name_tells_the_stage_where_nothing_else_does(tmp_path: Path) -> None:
    """SGLang writes one file a stage if asked to."""
    captures = open_captures([tmp_path_with(tmp_path, "1-TP-0-EXTEND.trace.json"), tmp_path_with(tmp_path, "x.json")])

    assert [("prefill",), ("all",)] == [each.work.stage for each in captures]


def tmp_path_with(folder: Path, name: str) -> Path:
    """A trace of one kernel."""
    (folder / name).write_bytes(orjson.dumps({"traceEvents": [kernel("k", 0, 1)]}))
    return folder / name


def test_a_pass_that_waited_for_requests_is_not_charged_for_it(tmp_path: Path) -> None:
    """The step before ends with its own last kernel."""
    fetches = [event("user_annotation", "scheduler.get_next_batch_to_run", 200 + 10 * n, 5) for n in range(9)]
    events = [*model_pass(0, [["a", "b"]]), *fetches, *model_pass(1000, [["a", "b"]], first_id=50)]
    found = table(gather(capture(tmp_path, events), ["forward_passes"]), "forward_passes").rows

    assert [15.0, 15.0] == [row["step_us"] for row in found]
    assert ["", "waited"] == [row["notes"] for row in found]


LINEAR, FULL = ["norm_in", "gdn_mix", "silu_and_mul"], ["norm_in", "qkv_gemm", "flash_attention", "silu_and_mul"]


def test_graphs_borrow_layers_and_places_from_the_mapping_trace(tmp_path: Path) -> None:
    """The k-th kernel of a name is the k-th of that name there."""
    mapping = capture(tmp_path, model_pass(0, [LINEAR, FULL, LINEAR]))
    formal = Capture(capture(tmp_path, model_pass(0, [LINEAR, FULL, LINEAR], graph=True)).trace, mapping)

    assert [0] * 3 + [1] * 4 + [2] * 3 == formal.layers.number.tolist()
    assert "sglang/srt/models/toy.py(11): forward" == formal.work.origin[4].location
    assert {"mapping"} == set(formal.work.source)


def test_a_kernel_that_runs_in_other_numbers_is_called_likely(tmp_path: Path) -> None:
    """Its layer is then not taken from the mapping trace."""
    mapping = capture(tmp_path, model_pass(0, [LINEAR, FULL]))
    formal = Capture(capture(tmp_path, model_pass(0, [LINEAR, LINEAR], graph=True)).trace, mapping)
    evidence = gather(formal, ["kernels"])

    assert {"norm_in": "mapping", "gdn_mix": "likely", "silu_and_mul": "mapping"} == {
        row["kernel"]: row["source"] for row in evidence.tables[0].rows
    }
    assert any("likely, not certain" in note for note in evidence.notes)


def test_layers_are_refused_where_they_cannot_be_told(tmp_path: Path) -> None:
    """Pieces that are not alike are no layers."""
    chaos = [["rms_norm", *(f"{letter}{n}" for n in range(6)), "silu"] for letter in "abcd"]
    filled = table(gather(capture(tmp_path, model_pass(0, chaos, graph=True)), ["layers"]), "layers")

    assert () == filled.rows
    assert "layers cannot be told (pieces between norms are only 0.25 alike" in filled.why_empty
    assert "--anchor" in filled.why_empty


def test_pieces_of_a_pass_in_graphs_and_attention_outside_are_one_layer(tmp_path: Path) -> None:
    """As prefill graphs run them: what is eager has stacks without layers, and stands where it ran."""
    layers = [["norm_in", "gemm", "flash_attention", "silu_and_mul"]] * 2
    mapping = capture(tmp_path, model_pass(0, layers, mode="EXTEND"))
    events = [step("EXTEND", 0, 100), frame("sglang/srt/layers/attention/backend.py(9): forward_extend", 2, 90)]
    for n in range(2):
        at, ids = 10 + 40 * n, 10 * n
        events += [
            launch(at, ids + 1, "cudaGraphLaunch"),
            launch(at + 12, ids + 2),
            launch(at + 22, ids + 3, "cudaGraphLaunch"),
        ]
        events += [
            kernel("norm_in", at + 3, 4, correlation=ids + 1),
            kernel("gemm", at + 8, 4, correlation=ids + 1),
            kernel("flash_attention", at + 15, 4, correlation=ids + 2),
            kernel("silu_and_mul", at + 25, 4, correlation=ids + 3),
        ]
    formal = Capture(capture(tmp_path, events).trace, mapping)

    assert [0] * 4 + [1] * 4 == formal.layers.number.tolist()
    assert "sglang/srt/layers/attention/backend.py(9): forward_extend" == formal.work.origin[2].location


def test_a_profile_of_the_device_alone_still_has_kernels_gaps_and_layers(tmp_path: Path) -> None:
    """Without the host there are no passes, launches or places; what is left says so or is None."""
    names = ["rms_norm", "qkv_gemm", "flash_attention", "silu_and_mul", "down_gemm"] * 4 + ["rms_norm", "lm_gemm"]
    evidence = gather(capture(tmp_path, [kernel(name, 10 * n, 8) for n, name in enumerate(names)]))

    assert {"all"} == {row["stage"] for row in table(evidence, "kernels").rows}
    assert {None} == {row["late_pct"] for row in table(evidence, "idle_gaps").rows}
    assert [0, 1, 2, 3] == [row["layer"] for row in table(evidence, "layers").rows]
    assert "marks no forward pass" in table(evidence, "forward_passes").why_empty
    assert "no operators" in table(evidence, "operators").why_empty
    assert "no Python stacks" in table(evidence, "host_functions").why_empty


def test_kernels_without_their_launch_are_told_by_the_passs_shadow(tmp_path: Path) -> None:
    """The launch fell before the profile began."""
    shadow = event("gpu_user_annotation", "step[DECODE bs=1]", 50, 40, pid=0, tid=7, args={"External id": 9})
    span = event("user_annotation", "step[DECODE bs=1]", 0, 10, args={"External id": 9})
    work = capture(tmp_path, [span, shadow, kernel("k", 60, 5), kernel("late", 95, 5)]).work

    assert ["decode", "between"] == list(work.stage)


def test_kernels_of_several_devices_do_not_hide_each_other(tmp_path: Path) -> None:
    """A stream of one device is not beside a stream of another."""
    first, second = kernel("a", 0, 10), kernel("b", 0, 10, stream=8)
    second["args"]["device"] = 1

    assert [0, 0] == capture(tmp_path, [first, second]).work.hidden_ns.tolist()


def test_an_anchor_cuts_layers_where_it_is_told_to(tmp_path: Path) -> None:
    """For models without norms or activations that the rules know."""
    found = capture(tmp_path, model_pass(0, [["start", "x", "y"]] * 3, graph=True), anchor="start")

    assert [0, 0, 0, 1, 1, 1, 2, 2, 2] == found.layers.number.tolist()


def test_fusions_of_several_ranks_are_looked_for_where_there_are_several(tmp_path: Path) -> None:
    """All-reduce and norm, side by side."""
    layers = [["ncclDevKernel_AllReduce_Sum", "rms_norm", "gemm"]] * 3
    filled = table(gather(capture(tmp_path, model_pass(0, layers)), ["fusion"]), "fusion")

    assert [("all-reduce, residual add and norm", "split", 3)] == [
        (row["pattern"], row["status"], row["times"]) for row in filled.rows
    ]


def test_overlap_puts_communication_that_is_alone_first(tmp_path: Path) -> None:
    """And leaves what another stream hides."""
    events = [step("DECODE", 0, 500)]
    for n in range(5):
        ids, at = 10 * n, 100 * n
        events += [launch(at + part, ids + part) for part in (1, 2, 3)]
        events += [
            kernel("gemm", at + 5, 40, correlation=ids + 1),
            kernel("memcpy_side", at + 5, 30, stream=8, correlation=ids + 2),
            kernel("nccl_AllReduce", at + 70, 20, correlation=ids + 3),
        ]  # fmt: skip
    found = table(gather(capture(tmp_path, events), ["overlap"]), "overlap").rows

    assert [("nccl_AllReduce", 1, "try overlap")] == [(r["kernel"], r["priority"], r["verdict"]) for r in found][:1]
    assert {"memcpy_side": 100.0, "nccl_AllReduce": 0.0, "gemm": 75.0} == {r["kernel"]: r["hid_pct"] for r in found}


def test_gaps_say_whether_the_host_was_late(tmp_path: Path) -> None:
    """Late until the launch has returned; a launch long before leaves the device to blame."""
    events = [
        step("DECODE", 0, 100), launch(0, 1), launch(4, 2), launch(80, 3),
        kernel("a", 5, 5, correlation=1), kernel("b", 30, 5, correlation=2), kernel("c", 95, 5, correlation=3),
    ]  # fmt: skip
    found = {r["after"]: r for r in table(gather(capture(tmp_path, events), ["idle_gaps"]), "idle_gaps").rows}

    assert (20.0, 0.0) == (found["b"]["idle_us"], found["b"]["late_pct"])
    assert (60.0, pytest.approx(100 * 47 / 60)) == (found["c"]["idle_us"], found["c"]["late_pct"])


def test_operators_still_tell_on_a_cpu(tmp_path: Path) -> None:
    """Own times sum to all; passes, layers and flow are made of operators; kernels say why they are empty."""
    events = [step("DECODE", 0, 100)]
    for n in range(2):
        at = 5 + 40 * n
        events += [
            frame(f"nn.Module: ToyDecoderLayer_{n}", at, 30), frame("sglang/srt/models/toy.py(3): forward", at + 1, 28),
            event("cpu_op", "aten::linear", at + 2, 20, args={"Input Dims": [[1, 8], [8, 8], []]}),
            event("cpu_op", "aten::addmm", at + 4, 15, args={"Input Dims": [[1, 8], [8, 8], []]}),
        ]  # fmt: skip
    evidence = gather(capture(tmp_path, events))
    operators = {row["operator"]: row for row in table(evidence, "operators").rows}

    assert evidence.device is None
    assert 40.0 == evidence.total_us
    assert (30.0, 10.0) == (operators["aten::addmm"]["self_us"], operators["aten::linear"]["self_us"])
    assert "1x8, 8x8" == operators["aten::addmm"]["input_dims"]
    assert "sglang/srt/models/toy.py(3): forward" == operators["aten::addmm"]["python_location"]
    assert 2 == len(table(evidence, "layers").rows)
    assert "table `operators`" in table(evidence, "kernels").why_empty
    assert table(evidence, "forward_passes").rows[0]["late_us"] is None


def test_recursion_counts_once(tmp_path: Path) -> None:
    """A function's total is not the sum over its own calls of itself."""
    name = "sglang/srt/a.py(1): visit"
    events = [frame(name, 0, 100), frame(name, 10, 50), frame(name, 20, 10), launch(25, 1)]
    (row,) = table(gather(capture(tmp_path, events), ["host_functions"]), "host_functions").rows

    assert (3, 100.0, 100.0) == (row["calls"], row["self_us"], row["total_us"])


@pytest.mark.parametrize("pattern", read_catalogue(), ids=lambda pattern: pattern.name)
def test_the_catalogues_paths_exist_in_the_installed_sglang(pattern: Any) -> None:
    """A proposal must lead somewhere."""
    sglang = pytest.importorskip("importlib.util").find_spec("sglang")
    if sglang is None:
        pytest.skip("SGLang is not installed")

    assert (Path(sglang.submodule_search_locations[0]) / pattern.path).exists()
