"""Prompts: made from seeds, kept in files."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from loop.errors import SuiteError
from loop.prompts import CATEGORIES, Prompt, Shape, correctness, read, traffic, warmup, write
from loop.prompts.catalog import H200_COUNTS, QUADRANTS_COUNTS, QUADRANTS_SEED, SMOKE_COUNTS, make_files
from loop.prompts.dice import Dice
from loop.prompts.grammar import SLOT, Grammar
from loop.prompts.programs import find_language, write_function
from loop.prompts.store import format_lines, parse_lines
from loop.prompts.timed import KINDS

WORKLOADS = Path(__file__).parent.parent / "workloads"
FILES = make_files()
STORED = sorted(FILES)
TIMED = [name for name in STORED if not name.endswith("check.jsonl")]
VISIBLE = {prompt.text for prompt in correctness(QUADRANTS_SEED, QUADRANTS_COUNTS)}
SHAPES = (Shape(input_tokens=40, output_tokens=8), Shape(input_tokens=300, output_tokens=16)) * 3

# Everything UTF-8 can hold: no lone surrogates.
texts = st.text(st.characters(codec="utf-8"), min_size=1)
prompts = st.builds(
    Prompt,
    id=texts,
    category=texts,
    text=texts,
    max_new_tokens=st.integers(1, 10**6),
    input_tokens=st.none() | st.integers(1, 10**6),
)


def make_prompt(name: str = "a", text: str = "text") -> Prompt:
    """Valid, and sent whole: no number of input tokens."""
    return Prompt(id=name, category="normal", text=text, max_new_tokens=32)


@given(st.lists(prompts, min_size=1, unique_by=lambda prompt: prompt.id))
@example([make_prompt(text="a\u2028b\u2029c\u0085d\re\r\nf\vg\fh\x1ci\x7fj\ufeffk")])
@example(
    [
        make_prompt("1", "\U0001f468\u200d\U0001f469\u200d\U0001f467"),
        make_prompt("2", "\n"),
        make_prompt("3", '"\\u0041"'),
    ]
)
def test_what_is_written_is_read(items: list[Prompt]) -> None:
    """Any text survives, whatever some readers take for the end of a line."""
    path = Path("some.jsonl")

    data = format_lines(items, path)

    assert tuple(items) == parse_lines(data, path)
    assert len(items) == data.count(b"\n")


def test_files_are_written_and_read(tmp_path: Path) -> None:
    """A file holds one object a line, keys sorted, with a null for a missing number of input tokens."""
    path = tmp_path / "p.jsonl"

    write(path, [make_prompt(text="\u2028\u4e2d")])

    expected = '{"category":"normal","id":"a","input_tokens":null,"max_new_tokens":32,"text":"\u2028\u4e2d"}\n'
    assert expected.encode() == path.read_bytes()
    assert (make_prompt(text="\u2028\u4e2d"),) == read(path)


GOOD = b'{"id":"a","category":"c","text":"t","max_new_tokens":1}\n'


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "p.jsonl holds no prompts"),
        (GOOD + b"{\n", "p.jsonl:2: not JSON: "),
        (GOOD + b"\n", "p.jsonl:2: not JSON: "),
        (GOOD + b"[]\n", "p.jsonl:2: not a prompt: line: "),
        (GOOD + b"\xff\n", "p.jsonl:2: not UTF-8: invalid start byte at byte 0"),
        (GOOD[:-1], "p.jsonl:1: the last line has no end"),
        (GOOD + GOOD, "p.jsonl: 2 prompts have the id 'a'"),
        (GOOD.replace(b'"t"', b'""'), "p.jsonl:1: not a prompt: text: "),
        (GOOD.replace(b'"t"', b'"\\ud800"'), "p.jsonl:1: not a prompt: text: "),
        (GOOD.replace(b":1}", b":0}"), "p.jsonl:1: not a prompt: max_new_tokens: "),
        (GOOD.replace(b":1}", b':1,"salt":2}'), "p.jsonl:1: not a prompt: salt: "),
        (GOOD.replace(b"id", b"di"), "p.jsonl:1: not a prompt: id: "),
    ],
)
def test_bad_files_are_refused(tmp_path: Path, data: bytes, message: str) -> None:
    """The refusal names the file, the line and the field."""
    path = tmp_path / "p.jsonl"
    path.write_bytes(data)

    with pytest.raises(SuiteError) as refusal:
        read(path)

    assert message in str(refusal.value)
    assert str(tmp_path) in str(refusal.value)


@pytest.mark.parametrize("line", [b"[" * 200_000, b"1" * 9_000])
def test_hostile_json_is_refused(tmp_path: Path, line: bytes) -> None:
    """A line that is nested too deeply, or a number that is too long, is refused like any other bad line."""
    path = tmp_path / "p.jsonl"
    path.write_bytes(GOOD + line + b"\n")

    with pytest.raises(SuiteError, match=r"p\.jsonl:2: "):
        read(path)


def test_missing_files_are_refused(tmp_path: Path) -> None:
    """A missing file is bad input, not a crash."""
    with pytest.raises(SuiteError, match="cannot read prompts from"):
        read(tmp_path / "none.jsonl")


def test_repeated_ids_are_not_written(tmp_path: Path) -> None:
    """Two prompts with one id never reach a file."""
    path = tmp_path / "p.jsonl"

    with pytest.raises(SuiteError, match="2 prompts have the id 'a'"):
        write(path, [make_prompt(), make_prompt(text="other")])

    assert not path.exists()


def test_the_command_checks_and_repairs(tmp_path: Path) -> None:
    """`python -m loop.prompts --check` names every file that differs; without `--check` it writes them."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "loop.prompts", *arguments]
        return subprocess.run(command, capture_output=True, text=True, cwd=WORKLOADS.parent, check=False)

    assert 0 == run(str(tmp_path)).returncode
    assert 0 == run("--check", str(tmp_path)).returncode

    changed = tmp_path / "smoke" / "check.jsonl"
    changed.write_bytes(changed.read_bytes().replace(b"a", b"b", 1))
    (tmp_path / "smoke" / "mixed_c4.jsonl").unlink()
    result = run("--check", str(tmp_path))

    assert 1 == result.returncode
    assert f"{changed} differs" in result.stderr
    assert "mixed_c4.jsonl is missing" in result.stderr


@pytest.mark.parametrize("name", STORED)
def test_stored_files_are_the_generated_ones(name: str) -> None:
    """Every stored file is, byte for byte, what its seed gives here."""
    path = WORKLOADS / name

    assert format_lines(FILES[name], path) == path.read_bytes()


def test_no_other_prompts_are_stored() -> None:
    """Every prompt file of the two suites comes from the generator."""
    found = [path for suite in ("h200_cut", "quadrants", "smoke") for path in (WORKLOADS / suite).glob("**/*.jsonl")]

    assert STORED == sorted(str(path.relative_to(WORKLOADS)) for path in found)


@pytest.mark.parametrize(
    ("suite", "counts", "total"),
    [("h200_cut", H200_COUNTS, 20), ("quadrants", QUADRANTS_COUNTS, 174), ("smoke", SMOKE_COUNTS, 24)],
)
def test_check_prompts_by_category(suite: str, counts: dict[str, int], total: int) -> None:
    """The correctness set holds all seven categories in the stated numbers."""
    found = Counter(prompt.category for prompt in read(WORKLOADS / suite / "check.jsonl"))

    assert dict(counts) == dict(found)
    assert set(CATEGORIES) == set(found)
    assert total == found.total()


def test_check_prompts_ask_for_short_answers() -> None:
    """One flip costs everything after it, so answers stay short; in the small suite very short."""
    assert all(32 <= prompt.max_new_tokens <= 256 for prompt in read(WORKLOADS / "quadrants/check.jsonl"))
    assert {32} == {prompt.max_new_tokens for prompt in read(WORKLOADS / "smoke/check.jsonl")}


@pytest.mark.parametrize("name", STORED)
def test_stored_prompts_differ(name: str) -> None:
    """No two prompts of a file share an id or a text, and none is empty."""
    stored = read(WORKLOADS / name)

    assert len(stored) == len({prompt.id for prompt in stored})
    assert len(stored) == len({prompt.text for prompt in stored})
    assert all(prompt.text for prompt in stored)


@pytest.mark.parametrize("name", STORED)
def test_stored_prompts_can_be_sent(name: str) -> None:
    """No slot is left open, and there is no NUL, which some HTTP stacks cannot carry."""
    for prompt in read(WORKLOADS / name):
        assert "\0" not in prompt.text
        assert SLOT.search(prompt.text) is None


@pytest.mark.parametrize("name", TIMED)
def test_timed_prompts_are_long_enough(name: str) -> None:
    """There are at least as many words as tokens will be cut, and no two prompts begin with the same word."""
    stored = read(WORKLOADS / name)

    assert all(prompt.input_tokens is not None for prompt in stored)
    assert all(len(prompt.text.split()) >= (prompt.input_tokens or 0) for prompt in stored)
    assert len(stored) == len({prompt.text.split()[0] for prompt in stored})


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("quadrants/short_in_short_out", [(256, 128)] * 8),
        ("quadrants/short_in_long_out", [(256, 1024)] * 3),
        ("quadrants/long_in_short_out", [(8192, 128)] * 3),
        ("quadrants/long_in_long_out", [(8192, 1024)] * 2),
        ("quadrants/reasoning", [(512, 2048)] * 2),
        ("smoke/short_in_long_out", [(64, 96)] * 4),
        ("smoke/long_in_short_out", [(512, 16)] * 4),
    ],
)
def test_shapes_of_sequential_workloads(name: str, shapes: list[tuple[int, int]]) -> None:
    """Each quadrant keeps one shape."""
    stored = read(WORKLOADS / f"{name}.jsonl")

    assert shapes == [(prompt.input_tokens, prompt.max_new_tokens) for prompt in stored]


@pytest.mark.parametrize(
    ("name", "count", "inputs", "outputs"),
    [
        ("quadrants/mixed_c4", 16, {128, 256, 512, 1024, 2048}, {64, 128, 256, 512}),
        ("quadrants/mixed_c8", 32, {128, 256, 512, 1024, 2048}, {64, 128, 256, 512}),
        ("smoke/mixed_c4", 12, {32, 64, 128, 256}, {16, 32, 64}),
    ],
)
def test_shapes_of_mixed_workloads(name: str, count: int, inputs: set[int], outputs: set[int]) -> None:
    """Mixed traffic uses every length."""
    stored = read(WORKLOADS / f"{name}.jsonl")

    assert count == len(stored)
    assert inputs == {prompt.input_tokens for prompt in stored}
    assert outputs == {prompt.max_new_tokens for prompt in stored}


def test_stored_files_are_small() -> None:
    """Together they stay far below what a repository minds."""
    assert sum((WORKLOADS / name).stat().st_size for name in STORED) < 1_500_000


@given(st.text(st.characters(codec="utf-8")))
def test_other_seeds_give_other_prompts(seed: str) -> None:
    """A held-back set shares almost nothing with the visible one."""
    made = correctness(seed, {category: 8 for category in CATEGORIES if category != "long_context"})

    assert len(made) == len({prompt.text for prompt in made}) == len({prompt.id for prompt in made})
    assert sum(prompt.text in VISIBLE for prompt in made) <= 2


def test_ids_of_two_sets_differ() -> None:
    """Visible and held-back prompts can be sent in one pass."""
    first, second = (correctness(seed, QUADRANTS_COUNTS) for seed in ("one", "two"))

    assert not {prompt.id for prompt in first} & {prompt.id for prompt in second}


def test_larger_counts_only_add() -> None:
    """The first prompts of a category do not depend on how many follow."""
    few, many = correctness("s", {"math": 5, "cjk": 2}), correctness("s", {"math": 9, "cjk": 2})

    assert set(few) <= set(many)


def test_any_set_has_different_texts() -> None:
    """Even a thousand one-letter-like prompts are all different."""
    made = correctness("s", {"degenerate": 1000})

    assert 1000 == len({prompt.text for prompt in made})
    assert all(prompt.text for prompt in made)


def test_unknown_categories_and_kinds_are_refused() -> None:
    """A misspelt name is an error of the caller, with the known ones."""
    with pytest.raises(ValueError, match="no such category: maths; known: normal, code, math"):
        correctness("s", {"maths": 1})
    with pytest.raises(ValueError, match="no such kind of traffic: talk; known: chat, document"):
        traffic("s", "talk", SHAPES)


@pytest.mark.parametrize("kind", KINDS)
def test_traffic_fits_its_shapes(kind: str) -> None:
    """Traffic of every kind has the asked lengths, and begins differently each time."""
    made = traffic("s", kind, SHAPES)

    assert list(SHAPES) == [Shape(input_tokens=p.input_tokens or 0, output_tokens=p.max_new_tokens) for p in made]
    assert all(len(prompt.text.split()) >= (prompt.input_tokens or 0) for prompt in made)
    assert len(made) == len({prompt.text.split()[0] for prompt in made})
    assert made == traffic("s", kind, SHAPES)


def test_warmup_prompts_are_others_of_the_same_shape() -> None:
    """Warm-up traffic costs what timed traffic costs and shares no text with it."""
    timed = (*traffic("s", "mixed", SHAPES), make_prompt(text="a whole text of seven short words"))

    warm = warmup("s", timed)

    assert [(p.category, p.input_tokens, p.max_new_tokens) for p in timed] == [
        (p.category, p.input_tokens, p.max_new_tokens) for p in warm
    ]
    assert all(len(prompt.text.split()) >= (prompt.input_tokens or 7) for prompt in warm)
    assert not {prompt.text for prompt in timed} & {prompt.text for prompt in warm}
    assert warm != warmup("t", timed)


def test_dice_are_fixed_forever() -> None:
    """The draws behind every stored file; a change here would change every suite."""
    dice = Dice("seed", 1)

    assert [17, 11, 7, 13] == [dice.number(1, 20) for _ in range(4)]
    assert ["d", "c", "b", "a"] == dice.shuffled("abcd")
    assert dice.fork("x").letters(4) == Dice("seed", 1, "x").letters(4)


@given(st.integers(-50, 50), st.integers(0, 100), st.text(st.characters(codec="utf-8")))
def test_dice_stay_within_bounds(low: int, width: int, label: str) -> None:
    """Both ends are included, nothing beyond them."""
    assert low <= Dice(label).number(low, low + width) <= low + width


def test_templates_fill_their_slots() -> None:
    """Labels repeat a word, other labels take another one, capitals and articles follow."""
    grammar = Grammar(lists={"fruit": ["apple", "pear"], "pair": ["{{fruit#a}}, {{fruit#b}}, {{fruit#a}}"]})

    filled = {
        grammar.fill(Dice(i), "A(n) {{fruit#a}}: {{Fruit#a}} ({{pair}}) {{3..3}} {not a slot}") for i in range(20)
    }

    assert {
        "An apple: Apple (apple, pear, apple) 3 {not a slot}",
        "A pear: Pear (pear, apple, pear) 3 {not a slot}",
    } == filled


@given(st.integers())
def test_drawn_programs_run(seed: int) -> None:
    """Generated Python is real Python: it compiles, ends, and returns a number."""
    function = write_function(Dice(seed), find_language("Python"), 12)
    names: dict[str, object] = {}

    exec(function.text, names)  # noqa: S102 - a program of ours, and whether it runs is the question

    call = names[function.name]
    assert callable(call)
    assert isinstance(call(*range(function.num_parameters)), int)
