"""Bundles: parents, identity, targets, and an effective bundle that nobody edited."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tomlkit

from loop.bundles import bundle_ids, read_bundle
from loop.content import AppliesTo, Content, check_target, differences
from loop.effective import Effective, read_effective
from loop.engines.fake import Fake
from loop.errors import BundleError
from loop.flattening import Flattened, flatten
from tests.brackets import effective

Write = Callable[..., str]


@pytest.fixture
def candidates(tmp_path: Path) -> Path:
    """A folder of bundles with an empty `original`."""
    folder = tmp_path / "candidates"
    write(folder, "original")
    return folder


def write(folder: Path, bundle_id: str, **fields: Any) -> Path:
    """A bundle with these fields; `args`, `env` and `unset` go under `[server]`."""
    server = {name: fields.pop(name) for name in ("args", "env", "unset") if name in fields}
    document = {"schema": "loop.bundle/1", "hypothesis": "a test", **fields, "server": server}
    path = folder / bundle_id / "bundle.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(tomlkit.dumps(document))
    return path


def flat(folder: Path, bundle_id: str, shipped: Effective | None = None, original: str = "original") -> Flattened:
    """The bundle with its parents applied."""
    return flatten(folder, bundle_id, engine="fake", shipped=shipped, original=original)


def content(**fields: Any) -> Content:
    """Content with these fields."""
    return Content.model_validate(
        {"engine": "fake", "args": {}, "env": {}, "numerics": "exact", "applies_to": AppliesTo(), **fields}
    )


# parents


def test_a_child_wins_over_its_parents_and_drops_what_it_unsets(candidates: Path) -> None:
    """Three generations."""
    write(candidates, "old", args={"a": 1, "b": 1, "c": 1}, env={"X": "1", "Y": "1"})
    write(candidates, "mid", parent="old", args={"b": 2}, unset=["c"], env={"Y": "2"})
    write(candidates, "new", parent="mid", args={"d": 3})

    flattened = flat(candidates, "new")

    assert {"a": 1, "b": 2, "d": 3} == flattened.content.args
    assert {"X": "1", "Y": "2"} == flattened.content.env
    assert ("new", "mid", "old") == flattened.lineage
    assert "new" == flattened.bundle_id


def test_what_was_unset_may_be_set_again_further_down(candidates: Path) -> None:
    """Each generation sees its parent only."""
    write(candidates, "old", args={"a": 1})
    write(candidates, "mid", parent="old", unset=["a"])
    write(candidates, "new", parent="mid", args={"a": 2})

    assert {"a": 2} == flat(candidates, "new").content.args


@pytest.mark.parametrize(
    ("parent", "child", "expected"),
    [("exact", "exact", "exact"), ("near", "exact", "near"), ("exact", "near", "near"), ("lossy", "near", "lossy")],
)
def test_numerics_are_as_loose_as_the_loosest_generation(
    candidates: Path, parent: str, child: str, expected: str
) -> None:
    """A child cannot claim to be exact on top of a lossy parent."""
    write(candidates, "old", numerics=parent)
    write(candidates, "new", parent="old", numerics=child)

    assert expected == flat(candidates, "new").content.numerics


def test_a_target_is_inherited_where_the_child_names_none(candidates: Path) -> None:
    """Field by field."""
    write(candidates, "old", applies_to={"gpu": ["NVIDIA H200"], "sglang": "==0.5.23"})
    write(candidates, "new", parent="old", applies_to={"sglang": ">=0.5"})

    assert AppliesTo(gpu=("NVIDIA H200",), sglang=">=0.5") == flat(candidates, "new").content.applies_to


def test_a_typo_in_unset_is_refused(candidates: Path) -> None:
    """It would silently keep the option."""
    write(candidates, "old", args={"disable-radix-cache": True})
    write(candidates, "new", parent="old", unset=["disable-radix-cach"])

    with pytest.raises(BundleError) as caught:
        flat(candidates, "new")

    expected = "new: unset names disable-radix-cach, which its parent does not set; did you mean 'disable-radix-cache'?"
    assert expected == str(caught.value)


def test_an_option_that_is_both_set_and_unset_is_refused(candidates: Path) -> None:
    """Nobody can know which was meant."""
    write(candidates, "old", args={"a": 1})
    write(candidates, "new", parent="old", args={"a": 2}, unset=["a"])

    with pytest.raises(BundleError, match="new: a is both set and unset"):
        flat(candidates, "new")


def test_a_cycle_is_refused_with_its_path(candidates: Path) -> None:
    """However long."""
    write(candidates, "a", parent="b")
    write(candidates, "b", parent="c")
    write(candidates, "c", parent="a")

    with pytest.raises(BundleError, match="bundle 'a' is its own parent: a -> b -> c -> a"):
        flat(candidates, "a")


def test_an_original_that_wants_the_shipped_bundle_is_its_own_parent(candidates: Path) -> None:
    """While nothing is shipped, `shipped` is the original."""
    write(candidates, "original", parent="shipped")

    with pytest.raises(BundleError, match="is its own parent: original -> original"):
        flat(candidates, "original")


def test_a_missing_parent_is_named_with_the_closest_bundle(candidates: Path) -> None:
    """And with the file that would have to exist."""
    write(candidates, "graphs-off")
    write(candidates, "new", parent="graph-off")

    with pytest.raises(BundleError) as caught:
        flat(candidates, "new")

    assert "no bundle called 'graph-off'" in str(caught.value)
    assert "known: graphs-off, new, original; did you mean 'graphs-off'?" in str(caught.value)
    assert str(candidates / "graph-off" / "bundle.toml") in str(caught.value)


@pytest.mark.parametrize("bundle_id", ["../secret", "a/b", "A", "", ".hidden", "x" * 65, "a\n"])
def test_what_is_no_bundle_id_is_refused(candidates: Path, bundle_id: str) -> None:
    """An id is a folder's name and never a path."""
    with pytest.raises(BundleError, match="is not a bundle id"):
        read_bundle(candidates, bundle_id)


def test_on_top_of_what_is_shipped_the_lineage_goes_on(candidates: Path) -> None:
    """Its stored content is taken, not its files: they may be gone."""
    shipped = effective("winner", args={"inert-number": 5}, lineage=("winner", "original"))
    write(candidates, "new", parent="shipped", args={"tpot-ms": 1.0})

    flattened = flat(candidates, "new", shipped)

    assert {"inert-number": 5, "tpot-ms": 1.0} == flattened.content.args
    assert ("new", "shipped", "winner", "original") == flattened.lineage


def test_with_nothing_shipped_the_original_is_the_parent(candidates: Path) -> None:
    """Whichever the device's original is."""
    write(candidates, "tuned", args={"a": 1})
    write(candidates, "new", parent="shipped")

    assert {"a": 1} == flat(candidates, "new", original="tuned").content.args
    assert ("new", "tuned") == flat(candidates, "new", original="tuned").lineage


def test_bundles_are_listed_by_folder(candidates: Path) -> None:
    """Folders without a bundle.toml are none, and `shipped/` never is one."""
    write(candidates, "b")
    write(candidates, "shipped")
    (candidates / "empty").mkdir()

    assert ["b", "original"] == bundle_ids(candidates)


def test_shipped_is_no_bundles_id(candidates: Path) -> None:
    """Not even where somebody calls it the original of a device."""
    write(candidates, "shipped")
    write(candidates, "new", parent="original")

    with pytest.raises(BundleError, match="'shipped' is a reserved name"):
        flat(candidates, "new", original="shipped")


# identity


def test_words_change_no_hash(candidates: Path) -> None:
    """Title, hypothesis, expectation, comments, and the order of everything."""
    plain = write(candidates, "plain", args={"a": 1, "b": 2}, env={"X": "1", "Y": "2"})
    write(candidates, "wordy", title="T", args={"b": 2, "a": 1}, env={"Y": "2", "X": "1"}, expect={
        "metric": "e2e", "effect_pct": 5.0
    })  # fmt: skip
    path = candidates / "wordy" / "bundle.toml"
    path.write_text("# a comment\n" + path.read_text().replace("a test", "another hypothesis"))

    assert flat(candidates, "plain").sha256 == flat(candidates, "wordy").sha256
    assert plain.is_file()


def test_a_parent_changes_no_hash_that_its_content_does_not(candidates: Path) -> None:
    """Identity is what is served, not how it was written."""
    write(candidates, "old", args={"a": 1})
    write(candidates, "new", parent="old", args={"b": 2})
    write(candidates, "both", args={"a": 1, "b": 2})

    assert flat(candidates, "new").sha256 == flat(candidates, "both").sha256


@pytest.mark.parametrize(
    "fields",
    [
        {"args": {"a": 2}},
        {"args": {"a": True}},
        {"args": {"a": "1"}},
        {"args": {"a": [1]}},
        {"args": {}},
        {"args": {"a": 1}, "env": {"X": "1"}},
        {"args": {"a": 1}, "numerics": "near"},
        {"args": {"a": 1}, "applies_to": {"gpu": ["NVIDIA H200"]}},
        {"args": {"a": 1}, "applies_to": {"sglang": "==0.5.23"}},
        {"args": {"a": 1}, "applies_to": {"model_sha256": "abc"}},
    ],
)
def test_everything_that_matters_changes_the_hash(candidates: Path, fields: dict[str, Any]) -> None:
    """Options by value and type, environment, numerics, target."""
    write(candidates, "plain", args={"a": 1})
    write(candidates, "other", **fields)

    assert flat(candidates, "plain").sha256 != flat(candidates, "other").sha256


def test_the_engine_is_part_of_the_identity(candidates: Path) -> None:
    """The same options of another engine are another thing."""
    mine = flatten(candidates, "original", engine="fake", shipped=None, original="original")
    theirs = flatten(candidates, "original", engine="sglang", shipped=None, original="original")

    assert mine.sha256 != theirs.sha256


@pytest.mark.parametrize("text", ["nan", "inf"])
def test_a_number_that_json_does_not_have_is_refused_with_its_name(candidates: Path, text: str) -> None:
    """TOML has `nan` and `inf`; a hash over them would have no one byte form."""
    path = write(candidates, "odd")
    path.write_text(f'schema = "loop.bundle/1"\nhypothesis = "x"\n[server]\nargs = {{ fraction = {text} }}\n')

    with pytest.raises(BundleError, match=r"server\.args\.fraction"):
        read_bundle(candidates, "odd")


# targets


def test_a_bundle_without_a_target_applies_everywhere() -> None:
    """Nothing is raised."""
    check_target(content(), engine_version="0.5.23", device="cpu", model_sha256="abc")


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ({"sglang": "==0.5.22"}, "the bundle applies to sglang ==0.5.22; installed is 0.5.23"),
        ({"sglang": ">=0.6"}, "the bundle applies to sglang >=0.6; installed is 0.5.23"),
        (
            {"gpu": ["NVIDIA H200", "NVIDIA B200"]},
            "the bundle applies to NVIDIA H200, NVIDIA B200; this machine has cpu",
        ),
        ({"model_sha256": "d" * 64}, f"the bundle applies to model {'d' * 16}; this one is {'e' * 16}"),
    ],
)
def test_elsewhere_it_is_refused_with_both_sides(target: dict[str, Any], message: str) -> None:
    """What it wants, and what is here."""
    with pytest.raises(BundleError) as caught:
        check_target(
            content(applies_to=AppliesTo.model_validate(target)),
            engine_version="0.5.23",
            device="cpu",
            model_sha256="e" * 64,
        )

    assert message == str(caught.value)


@pytest.mark.parametrize(
    "target", [{"sglang": "==0.5.23"}, {"sglang": ">=0.5,<0.6"}, {"gpu": ["cpu"]}, {"model_sha256": "e" * 64}]
)
def test_where_it_fits_it_is_not_refused(target: dict[str, Any]) -> None:
    """Nothing is raised."""
    fitting = content(applies_to=AppliesTo.model_validate(target))

    check_target(fitting, engine_version="0.5.23", device="cpu", model_sha256="e" * 64)


def test_a_target_that_is_no_version_specifier_is_refused(candidates: Path) -> None:
    """When the bundle is read, not when it is run."""
    write(candidates, "odd", applies_to={"sglang": "newest"})

    with pytest.raises(BundleError, match=r"applies_to\.sglang: .*'newest' is not a version specifier"):
        read_bundle(candidates, "odd")


# differences


def test_differences_name_what_b_changes() -> None:
    """Changed, added and dropped, in options and environment; None where absent."""
    a = content(args={"same": 1, "changed": 1, "dropped": True}, env={"X": "1"})
    b = content(args={"same": 1, "changed": 2, "added": "x"}, env={"Y": "1"})

    expected = {
        "args.added": (None, "x"),
        "args.changed": (1, 2),
        "args.dropped": (True, None),
        "env.X": ("1", None),
        "env.Y": (None, "1"),
    }
    assert expected == differences(a, b)
    assert {} == differences(a, a)


# effective.json


def test_an_effective_bundle_reads_back_as_it_was_written(tmp_path: Path) -> None:
    """From the fake engine, with options of several kinds."""
    args: dict[str, Any] = {"tpot-ms": 2.5, "fault": ["crlf", "slow"], "disable-radix-cache": True, "inert-number": 3}
    write(tmp_path, "idea", args=args, env={"X": "ü"})
    made = Fake(python="python3").effective(flat(tmp_path, "idea"))

    made.write(tmp_path / "out")

    assert made == read_effective(tmp_path / "out")
    options = ["--disable-radix-cache", "--fault", "crlf", "--fault", "slow", "--inert-number", "3", "--tpot-ms", "2.5"]
    assert options == list(made.argv)
    assert {"tpot_ms", "fault", "disable_radix_cache", "inert_number"} == set(made.asked)


def test_an_edited_effective_bundle_is_refused(tmp_path: Path) -> None:
    """One changed value is enough."""
    path = effective("idea", args={"inert-number": 3}).write(tmp_path)
    path.write_text(path.read_text().replace('"inert-number":3', '"inert-number":4'))

    with pytest.raises(BundleError, match="was edited after it was written"):
        read_effective(tmp_path)


@pytest.mark.parametrize("field", ["argv", "command"])
def test_an_edited_command_line_is_refused_too(tmp_path: Path, field: str) -> None:
    """What is served is the argv; a hash that leaves it out proves nothing."""
    path = effective("idea", args={"inert-number": 3}, argv=("--inert-number", "3")).write(tmp_path)
    document = json.loads(path.read_text())
    document[field].append("--answer-seed=7")
    path.write_text(json.dumps(document))

    with pytest.raises(BundleError, match="was edited after it was written"):
        read_effective(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"), [("{", "is not JSON"), ("[]", "is not a valid effective"), ("{}", "is not a valid effective")]
)
def test_what_is_no_effective_bundle_is_refused(tmp_path: Path, text: str, message: str) -> None:
    """With the file's name."""
    (tmp_path / "effective.json").write_text(text)

    with pytest.raises(BundleError, match=rf"effective\.json {message}"):
        read_effective(tmp_path)


@pytest.mark.parametrize(
    ("directory", "next_step"),
    [
        ("original", "`loop init` writes it anew, or restore it from git"),
        ("shipped/0123456789abcdef", "restore it from git, or `loop promote --rollback`"),
    ],
)
@pytest.mark.parametrize("text", [None, "{", "[]", '"edited"'])
def test_a_broken_effective_bundle_says_what_brings_it_back(
    tmp_path: Path, directory: str, next_step: str, text: str | None
) -> None:
    """An original comes from its TOML; promoted content comes back from git only."""
    path = effective("idea").write(tmp_path / directory)
    if text is None:
        path.unlink()
    elif text == '"edited"':
        path.write_text(path.read_text().replace('"env":{}', '"env":{"A":"1"}'))
    else:
        path.write_text(text)

    with pytest.raises(BundleError) as caught:
        read_effective(tmp_path / directory)

    assert str(path) in caught.value.what
    assert next_step == caught.value.next


# what an engine refuses


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"args": {"port": 80}}, "odd: --port = 80 is denied in a bundle: it is the launcher's"),
        ({"args": {"model-path": "x"}}, "odd: --model-path = 'x' is denied in a bundle"),
        ({"args": {"tpot-m": 1.0}}, "did you mean 'tpot-ms'?"),
        ({"env": {"LOOP_DEVICE": "x"}}, "odd: environment LOOP_DEVICE is denied: the launcher's own variables"),
        ({"env": {"PYTHONPATH": "x"}}, "odd: environment PYTHONPATH is denied: would shadow the engine"),
        ({"env": {"SGLANG_SIMULATE_ACC_LEN": "3"}}, "simulated acceptance is not speed"),
        ({"env": {"LD_AUDIT": "x.so"}}, "odd: environment LD_AUDIT is denied: would run what is not in the bundle"),
        (
            {"env": {"LD_LIBRARY_PATH": "/x"}},
            "environment LD_LIBRARY_PATH is denied: would shadow the engine's libraries",
        ),
        (
            {"env": {"LD_PRELOAD": "/x/faketime.so"}},
            "LD_PRELOAD is denied: '/x/faketime.so' can change what is measured",
        ),
        ({"env": {"LD_PRELOAD": "libjemalloc.so.2:/x/hook.so"}}, "'/x/hook.so' can change what is measured"),
        ({"env": {"LD_PRELOAD": "/libgomp.so/hook.so"}}, "'/libgomp.so/hook.so' can change what is measured"),
        (
            {"env": {"LD_PRELOAD": "libfaketcmalloc.so"}},
            "only tcmalloc, jemalloc, mimalloc, iomp5, gomp may be preloaded",
        ),
    ],
)
def test_an_engine_refuses_denied_options_and_variables(candidates: Path, fields: dict[str, Any], message: str) -> None:
    """With the bundle, the option and the reason."""
    write(candidates, "odd", **fields)

    with pytest.raises(BundleError) as caught:
        Fake(python="python3").effective(flat(candidates, "odd"))

    assert message in str(caught.value)


@pytest.mark.parametrize(
    "value",
    [
        "/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4",
        "libjemalloc.so.2",
        "libmimalloc-secure.so.2.1",
        "/opt/libiomp5.so:/usr/lib/libgomp.so.1",
        "libgomp.so.1 libtcmalloc.so.4",
        "",
    ],
)
def test_allocators_and_openmp_runtimes_may_be_preloaded(candidates: Path, value: str) -> None:
    """They are what people preload for speed; several may be named, as the loader reads them."""
    write(candidates, "idea", env={"LD_PRELOAD": value})

    assert {"LD_PRELOAD": value} == Fake(python="python3").effective(flat(candidates, "idea")).content.env


@pytest.mark.parametrize("broken", [{"args": {"tpot-m": 1.0}}, {"env": {"PYTHONPATH": "x"}}])
def test_what_a_parent_sets_is_refused_in_the_parents_name(candidates: Path, broken: dict[str, Any]) -> None:
    """The file to mend is the parent's."""
    write(candidates, "old", **broken)
    write(candidates, "mid", parent="old", args={"inert-number": 1})
    write(candidates, "new", parent="mid", args={"tpot-ms": 1.0})

    with pytest.raises(BundleError) as caught:
        Fake(python="python3").effective(flat(candidates, "new"))

    assert caught.value.what.startswith("old: ")
    assert "mend candidates/old/bundle.toml" == caught.value.next


def test_what_a_child_sets_anew_is_the_childs(candidates: Path) -> None:
    """The nearest one that sets it is the one to mend."""
    write(candidates, "old", args={"port": 1})
    write(candidates, "new", parent="old", args={"port": 2})

    with pytest.raises(BundleError) as caught:
        Fake(python="python3").effective(flat(candidates, "new"))

    assert caught.value.what.startswith("new: --port = 2 is denied")
    assert "mend candidates/new/bundle.toml" == caught.value.next


def test_shipped_content_that_no_longer_fits_is_said_to_be_shipped(candidates: Path) -> None:
    """After an upgrade of the engine there may be no TOML to mend."""
    write(candidates, "new", parent="shipped", args={"tpot-ms": 1.0})

    with pytest.raises(BundleError) as caught:
        Fake(python="python3").effective(flat(candidates, "new", effective("winner", args={"gone": 1})))

    assert "new: its parent, what is shipped, no longer fits: --gone is not an option" in caught.value.what
    assert "loop promote --rollback" in caught.value.next
