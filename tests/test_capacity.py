"""Capacity: a log's lines as rows that sum up, arithmetic that hits what the log says, and nothing invented."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loop.analysis.capacity import Capacity, crossings, plan_capacity, total_is_kept
from loop.analysis.capacity_hints import find_hints
from loop.analysis.capacity_log import ServerLog, parse_arguments, read_log
from loop.dimensions import Dimensions
from loop.errors import InputError

DATA = Path(__file__).parent / "data"
STAMP = "[2026-11-30 15:31:09{rank}] "
QWEN = {
    "model_type": "qwen3_5_text", "dtype": "bfloat16", "hidden_size": 2560, "intermediate_size": 9216,
    "vocab_size": 248320, "num_hidden_layers": 32, "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 256,
    "attn_output_gate": True, "tie_word_embeddings": True, "full_attention_interval": 4, "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_num_key_heads": 16, "linear_num_value_heads": 32,
    "mamba_ssm_dtype": "float32", "mtp_num_hidden_layers": 1,
}  # fmt: skip
DENSE = {
    "model_type": "qwen3", "dtype": "bfloat16", "hidden_size": 1024, "intermediate_size": 3072, "vocab_size": 1000,
    "num_hidden_layers": 10, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 128,
}  # fmt: skip
LOADED = """server_args=ServerArgs(mem_fraction_static=0.8, tp_size=1, page_size=64, disable_radix_cache=False)
Load weight begin. avail mem=78.00 GB
Load weight end. elapsed=1.00 s, type=Qwen3ForCausalLM, avail mem=70.00 GB, mem usage=8.00 GB."""
POOLS = """KV Cache is allocated. dtype: torch.bfloat16, #tokens: 5000000, K size: 27.15 GB, V size: 27.15 GB
Memory pool end. avail mem=15.50 GB"""
SUMMARY = (
    "max_total_num_tokens=5000000, chunked_prefill_size=8192, max_prefill_tokens=16384, max_running_requests=256, "
)
SERVING = f"{SUMMARY}context_len=32768, available_gpu_mem=15.00 GB"


def write(path: Path, *texts: str, rank: str = "") -> Path:
    """A log of these lines, stamped as SGLang stamps them."""
    lines = [STAMP.format(rank=rank) + line for text in texts for line in text.splitlines()]
    path.write_text("\n".join(lines))
    return path


def read(tmp_path: Path, *texts: str, rank: str = "") -> ServerLog:
    """What is read from such a log."""
    return read_log(write(tmp_path / "server.log", *texts, rank=rank))


def sizes(capacity: Capacity) -> dict[str, float | None]:
    """Use of memory to GiB."""
    return {row.use: row.gib for row in capacity.memory}


@pytest.fixture(scope="module")
def h200() -> ServerLog:
    """SGLang 0.5.17 on an H200, a hybrid model of 4 B weights, graphs on."""
    return read_log(DATA / "launch-h200.log")


def test_the_rows_of_a_real_log_are_its_own_words(h200: ServerLog) -> None:
    """Each number stands in the log; the rest is their difference."""
    found = sizes(plan_capacity(h200, None))

    assert (7.96, 39.74, 35.74, 0.11) == (found["weights"], found["KV pool"], found["state pool"], found["CUDA graphs"])
    assert (139.13, 54.69) == (found["all that was free before load"], found["free"])
    assert (
        pytest.approx(139.13 - 7.96 - 39.74 - 35.74 - 0.11 - 54.69, abs=0.01)
        == found["tables, workspaces and framework"]
    )
    assert (None, None) == (found["draft weights"], found["draft KV pool"])


def test_the_arithmetic_hits_a_real_log(h200: ServerLog) -> None:
    """States to the last one, tokens within a tenth of a percent; both by hand from 0.6 of 139.13 GiB.

    rest = 131.16 - 139.13 * 0.4 = 75.508 GiB; a state = 24 layers * (32*128*128*4 + 3*8192*2) bytes = 51,511,296;
    states = 75.508 GiB * 0.9 / 1.9 / 51,511,296 - 1 = 744.6; a token = 8 layers * 2 * 4 * 256 * 2 = 32,768 bytes.
    """
    states, tokens = plan_capacity(h200, Dimensions.of(QWEN)).predictions

    assert (744, 744) == (states.predicted, states.logged)
    assert 1302286 == tokens.logged
    assert int((75.508 * 2**30 - 745 * 51_511_296) / 32_768) == pytest.approx(tokens.predicted, abs=2)
    assert tokens.is_reliable
    assert 0.06 == tokens.error_pct


def test_what_a_real_log_holds_per_token_and_request(h200: ServerLog) -> None:
    """From the pools as they were allocated: the model's config is not needed."""
    found = plan_capacity(h200, None)

    assert (pytest.approx(32.0, rel=0.001), pytest.approx(49.125, rel=0.001)) == (found.token_kib, found.state_mib)


def test_another_limit_binds_for_another_length(h200: ServerLog) -> None:
    """Short requests are ended by the states, long ones by keys and values; the context's own length is a row."""
    found = plan_capacity(h200, None)

    assert ((2048, ("tokens",)),) == crossings(found)
    assert ("requests", "states") == found.concurrency[0].binding
    assert {4096: 1302286 // 4096, 262144: 4}.items() <= {
        r.request_tokens: r.max_concurrent for r in found.concurrency
    }.items()


def test_hints_name_the_flag_and_what_speaks_for_it(h200: ServerLog) -> None:
    """The memory that nobody uses first."""
    hints = find_hints(h200, plan_capacity(h200, None))

    assert "--mem-fraction-static 0.93" == hints[0].flag
    assert "54.7 of 139.1 GiB" in hints[0].reason
    assert "--cuda-graph-max-bs-decode N" == hints[1].flag
    assert {"--mamba-ssm-dtype bfloat16", "--kv-cache-dtype fp8_e4m3"} <= {hint.flag for hint in hints}


def test_a_prediction_without_the_models_config_is_none_and_says_so(h200: ServerLog) -> None:
    """The log's own pools would only predict themselves."""
    (found,) = plan_capacity(h200, None).predictions

    assert (None, 1302286, None) == (found.predicted, found.logged, found.error_pct)
    assert "config.json" in (found.reason or "")
    assert not found.is_reliable


@pytest.mark.parametrize("rank", ["", " TP0", " DP1 TP3"])
def test_a_dense_models_pages_are_whole(tmp_path: Path, rank: str) -> None:
    """Tokens come in pages; ranks stamp their lines."""
    log = read(tmp_path, LOADED, POOLS, SERVING, rank=rank)
    (found,) = plan_capacity(log, Dimensions.of(DENSE)).predictions

    rest_bytes = (70 - 78 * 0.2) * 2**30
    assert int(rest_bytes // (2 * 2 * 128 * 10 * 2)) // 64 * 64 == found.predicted


def test_a_users_own_limit_is_the_prediction(tmp_path: Path) -> None:
    """`--max-total-tokens` below what memory holds."""
    log = read(tmp_path, LOADED.replace("tp_size=1", "tp_size=1, max_total_tokens=1000"), POOLS, SERVING)

    assert 1000 == plan_capacity(log, Dimensions.of(DENSE)).predictions[0].predicted


def test_a_drafts_lines_are_its_own(tmp_path: Path) -> None:
    """A draft worker repeats the target's lines, weights before the pools or after them."""
    draft = "Load weight begin. avail mem=70.00 GB\nLoad weight end. avail mem=69.50 GB, mem usage=0.50 GB."
    pool = POOLS.replace("27.15", "2.71")
    before = read(tmp_path, LOADED, draft, POOLS, pool, SERVING)
    after = read(tmp_path, LOADED, POOLS, draft, pool, SERVING)

    for log in (before, after):
        found = sizes(plan_capacity(log, None))
        assert (8.0, 0.5, 54.3, 5.42) == (
            found["weights"], found["draft weights"], found["KV pool"], found["draft KV pool"],
        )  # fmt: skip
    assert (69.5, 70.0) == (before.after_load_gib, after.after_load_gib)


def test_one_rank_of_many_is_read(tmp_path: Path) -> None:
    """Each says the same about a GPU of its own."""
    path = tmp_path / "server.log"
    lines = [
        STAMP.format(rank=rank) + line
        for line in [*LOADED.splitlines(), *POOLS.splitlines(), SERVING]
        for rank in (" TP1", " TP0")
    ]
    path.write_text("\n".join(lines))
    log = read_log(path)

    assert (2, 1, 8.0) == (log.num_ranks, len(log.pools), log.weights_gib)
    assert sizes(plan_capacity(log, None))["draft weights"] is None


def test_drafted_states_are_apart(tmp_path: Path) -> None:
    """With speculation, the state cache's line grows a second half."""
    line = (
        "Mamba Cache is allocated. max_mamba_cache_size: 100, conv_state size: 0.10GB, ssm_state size: 4.00GB "
        "intermediate_ssm_state_cache size: 1.50GB intermediate_conv_window_cache size: 0.05GB "
    )
    found = sizes(plan_capacity(read(tmp_path, LOADED, line, POOLS, SERVING), None))

    assert (4.1, 1.55) == (found["state pool"], found["states of drafted tokens"])


def test_addresses_are_no_memory(tmp_path: Path) -> None:
    """A pool that is sized after graph capture says two things; only the second is memory."""
    bound = "KV Cache VA upper bound. dtype: torch.bfloat16, #tokens: 9000000, K size: 50.00 GB, V size: 50.00 GB"
    sized = "Post-capture KV sizing: KV cache allocated. dtype: torch.bfloat16, #tokens: 4000000, KV size: 43.00 GB"
    torn = read(tmp_path, LOADED, bound, SERVING)
    log = read(tmp_path, LOADED, bound, sized, SERVING)

    assert sizes(plan_capacity(torn, None))["KV pool"] is None
    assert 43.0 == sizes(plan_capacity(log, None))["KV pool"]


def test_a_window_is_not_predicted(tmp_path: Path) -> None:
    """Two pools are read; how SGLang splits them is its own affair, and that is said."""
    full, end = POOLS.splitlines()
    log = read(tmp_path, LOADED, full.replace("KV", "Full KV", 1), full.replace("KV", "SWA KV", 1), end, SERVING)
    config = {**DENSE, "layer_types": ["full_attention", "sliding_attention"] * 5, "sliding_window": 128}
    (found,) = plan_capacity(log, Dimensions.of(config)).predictions

    assert 2 == len(log.pools)
    assert found.predicted is None
    assert "window" in (found.reason or "")


def test_a_log_that_breaks_off_keeps_what_it_said(tmp_path: Path) -> None:
    """Missing is null, never 0."""
    found = plan_capacity(read(tmp_path, LOADED), Dimensions.of(DENSE))

    assert (8.0, None, None) == (sizes(found)["weights"], sizes(found)["KV pool"], sizes(found)["free"])
    assert () == found.concurrency
    assert (found.predictions[0].logged, found.predictions[0].error_pct) == (None, None)


def test_pressure_comes_first_among_hints(tmp_path: Path) -> None:
    """A server that ran out of memory is not told to use more of it."""
    pressed = "KV cache pool is full. Retract requests. #retracted_reqs: 1, #new_tokens_gained: 5"
    dead = "Scheduler hit an exception: torch.OutOfMemoryError: CUDA out of memory."
    log = read(tmp_path, LOADED, POOLS, SERVING, pressed, dead)
    flags = [hint.flag for hint in find_hints(log, plan_capacity(log, None))]

    assert ["--mem-fraction-static 0.75", "--schedule-conservativeness"] == flags[:2]
    assert not any(flag.startswith("--mem-fraction-static 0.9") for flag in flags)


def test_heads_that_are_kept_twice_are_a_hint(tmp_path: Path) -> None:
    """Eight GPUs, two heads of keys and values."""
    log = read(tmp_path, LOADED.replace("tp_size=1", "tp_size=8"), POOLS, SERVING)
    capacity = plan_capacity(log, None)

    assert "--enable-dp-attention" in {hint.flag for hint in find_hints(log, capacity, Dimensions.of(DENSE))}
    assert "--enable-dp-attention" not in {hint.flag for hint in find_hints(log, capacity)}


@pytest.mark.parametrize(("content", "said"), [("", "says nothing"), (LOADED.splitlines()[0], "ends before")])
def test_what_is_no_servers_log_is_refused(tmp_path: Path, content: str, said: str) -> None:
    """With the next command."""
    with pytest.raises(InputError, match=said) as caught:
        read(tmp_path, content)
    assert "server.log" in caught.value.next


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    """Not a traceback."""
    with pytest.raises(InputError, match=r"no\.log cannot be read"):
        read_log(tmp_path / "no.log")


@pytest.mark.parametrize(
    "text",
    [
        "ServerArgs(a=1, path='/x, y', nested=Config(b=2, c=[1, 2]), name=None)",
        "{'a': 1, 'path': '/x, y', 'nested': Config(b=2, c=[1, 2]), 'name': None}",
    ],
)
def test_settings_are_read_from_both_prints(text: str) -> None:
    """A dataclass's and a dictionary's; commas inside stay inside."""
    found = parse_arguments(text)

    assert {"a": "1", "path": "'/x, y'", "nested": "Config(b=2, c=[1, 2])", "name": "None"} == found


@given(
    st.dictionaries(
        st.from_regex(r"[a-z_]{1,8}", fullmatch=True), st.one_of(st.text(), st.integers(), st.lists(st.text()))
    )
)
def test_settings_survive_printing(settings: dict[str, object]) -> None:
    """Whatever quotes and brackets their values hold."""
    assert {name: repr(value) for name, value in settings.items()} == parse_arguments(repr(settings))


@given(
    weights=st.floats(0, 60),
    pool=st.floats(0, 60),
    graphs=st.floats(0, 5),
    free=st.floats(-5, 60),
    total=st.floats(20, 150),
)
def test_the_parts_sum_up_to_the_whole(weights: float, pool: float, graphs: float, free: float, total: float) -> None:
    """Also where a log contradicts itself: what is left over is then negative, and shown."""
    log = ServerLog.model_validate(
        {
            "path": "-", "arguments": {}, "before_load_gib": total, "weights_gib": weights, "free_gib": free,
            "pools": [{"dtype": None, "num_tokens": 1, "gib": pool}],
            "graphs": [{"role": "", "gib": graphs, "sizes": []}],
        }
    )  # fmt: skip

    assert total_is_kept(plan_capacity(log, None))


def test_nested_configs_are_read_as_the_decoders(tmp_path: Path) -> None:
    """The vision tower's layers are not the model's: 32 and 24, not 92."""
    path = tmp_path / "config.json"
    path.write_text(
        json.dumps({"num_hidden_layers": 92, "text_config": QWEN, "vision_config": {"num_hidden_layers": 24}})
    )
    found = Dimensions.read(path)

    assert (32, 24, 8) == (len(found.layers), found.num_delta_layers, found.num_attention_layers)
