"""Code bundles: files read and checked, diffs resolved to whole files, parents first, everything by hash."""

import difflib
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import tomlkit

from loop.content import Content, check_target, differences
from loop.effective import Effective, read_effective, read_files
from loop.elements import Engaged, LoadedPlugin
from loop.engines.fake import Fake
from loop.errors import BundleError
from loop.flattening import Flattened, flatten
from tests.brackets import effective
from tests.conftest import REPOSITORY

X = "".join(f"x{number} = {number}\n" for number in range(1, 13))
PLUGIN = "def activate():\n    pass\n"


class Place:
    """A folder of bundles beside an installed package called `engine`."""

    def __init__(self, root: Path) -> None:
        self.candidates = root / "candidates"
        self.package = root / "site" / "engine"
        self.shipped: Effective | None = None
        self.shipped_files: Mapping[str, bytes] = {}
        self.install("srt/x.py", X)
        self.install("__init__.py", "")

    def install(self, path: str, text: str) -> str:
        """Put a file into the package; returns its sha256."""
        file = self.package / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return sha(text)

    def bundle(self, bundle_id: str, files: Mapping[str, str | bytes] | None = None, **tables: Any) -> str:
        """Write a bundle with these tables and files."""
        directory = self.candidates / bundle_id
        for name, text in (files or {}).items():
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            (directory / name).write_bytes(text if isinstance(text, bytes) else text.encode())
        directory.mkdir(parents=True, exist_ok=True)
        document = {"schema": "loop.bundle/1", "hypothesis": "a test", **tables}
        (directory / "bundle.toml").write_text(tomlkit.dumps(document))
        return bundle_id

    def patched(self, bundle_id: str, new: str, old: str = X, **tables: Any) -> str:
        """A bundle that patches `srt/x.py` from `old` to `new`."""
        patch = {"package": "engine", "file": "p.diff", "pre_sha256": {"srt/x.py": sha(old)}}
        return self.bundle(bundle_id, {"p.diff": diff(old, new)}, patch=[patch], **tables)

    def flat(self, bundle_id: str) -> Flattened:
        """Flattened against the package."""
        return flatten(
            self.candidates,
            bundle_id,
            engine="fake",
            shipped=self.shipped,
            original="original",
            shipped_files=self.shipped_files,
            installed=self._installed,
        )

    def refusal(self, bundle_id: str) -> str:
        """What is said of a bundle that is refused."""
        with pytest.raises(BundleError) as caught:
            self.flat(bundle_id)
        return caught.value.what

    def _installed(self, names: Sequence[str]) -> dict[str, str | None]:
        places = {"engine": str(self.package), "json": "/usr/lib/python3/json"}
        return {name: places.get(name) for name in names}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """Bundles and a package of two files."""
    return Place(tmp_path)


def sha(text: str) -> str:
    """Hex sha256."""
    return hashlib.sha256(text.encode()).hexdigest()


def diff(old: str, new: str, path: str = "srt/x.py") -> str:
    """A unified diff."""
    lines = difflib.unified_diff(old.splitlines(keepends=True), new.splitlines(keepends=True), f"a/{path}", f"b/{path}")
    return "".join(lines)


def text_of(flattened: Flattened, name: str) -> str:
    """The file that takes the place of `name`."""
    (item,) = (item for item in flattened.content.replaced if item.name == name)
    return flattened.files[item.post_sha256].decode()


# patches and overlays


def test_a_patch_becomes_a_whole_file(place: Place) -> None:
    """With the hashes of what was there and of what comes."""
    new = X.replace("x6 = 6", "x6 = 66")

    flattened = place.flat(place.patched("idea", new))

    (item,) = flattened.content.replaced
    assert ("engine/srt/x.py", sha(X), sha(new)) == (item.name, item.pre_sha256, item.post_sha256)
    assert {sha(new): new.encode()} == flattened.files


def test_a_child_patches_what_its_parent_made(place: Place) -> None:
    """Also far from the parent's lines; it may name the hash of either."""
    place.patched("old", old := X.replace("x2 = 2", "x2 = 22"))
    new = old.replace("x11 = 11", "x11 = 111")
    place.patched("by-result", new, old=old, parent="old")
    place.bundle(
        "by-installed",
        {"p.diff": diff(old, new)},
        parent="old",
        patch=[{"package": "engine", "file": "p.diff", "pre_sha256": {"srt/x.py": sha(X)}}],
    )

    results = [place.flat(name) for name in ("by-result", "by-installed")]

    assert [new, new] == [text_of(result, "engine/srt/x.py") for result in results]
    assert sha(X) == results[0].content.replaced[0].pre_sha256
    assert results[0].sha256 == results[1].sha256


def test_a_child_that_does_not_know_what_its_parent_made_is_refused_with_its_hunk(place: Place) -> None:
    """Its context is that of the installed file."""
    place.patched("old", X.replace("x5 = 5", "x5 = 55"))
    place.patched("new", X.replace("x6 = 6", "x6 = 66"), parent="old")

    said = place.refusal("new")

    expected = "hunk @@ -3,7 +3,7 @@ does not apply: line 5 should be 'x5 = 5\\n', it is 'x5 = 55\\n'"
    assert f"new: p.diff: srt/x.py: {expected}" == said


def test_a_child_may_take_back_what_its_parent_did(place: Place) -> None:
    """What is left is what is installed: nothing."""
    place.patched("old", old := X.replace("x5 = 5", "x5 = 55"))
    place.patched("new", X, old=old, parent="old")

    assert () == place.flat("new").content.replaced


def test_an_overlay_replaces_or_adds_a_whole_file(place: Place) -> None:
    """Of any kind."""
    overlays = [
        {"package": "engine", "path": "srt/x.py", "file": "x.py", "pre_sha256": sha(X)},
        {"package": "engine", "path": "csrc/k.cu", "file": "k.cu"},
    ]

    flattened = place.flat(place.bundle("idea", {"x.py": "x1 = 0\n", "k.cu": b"\xff"}, overlay=overlays))

    added, replaced = flattened.content.replaced
    assert ("engine/csrc/k.cu", None, False) == (added.name, added.pre_sha256, added.importable)
    assert ("engine/srt/x.py", sha(X), True) == (replaced.name, replaced.pre_sha256, replaced.importable)


def test_a_patch_may_create_a_file(place: Place) -> None:
    """It has no hash to name."""
    text = "--- /dev/null\n+++ b/srt/new.py\n@@ -0,0 +1,1 @@\n+y = 1\n"
    place.bundle("idea", {"p.diff": text}, patch=[{"package": "engine", "file": "p.diff"}])

    assert "y = 1\n" == text_of(place.flat("idea"), "engine/srt/new.py")


Tables = dict[str, list[dict[str, Any]]]
OVERLAY = {"package": "engine", "path": "srt/x.py", "file": "x.py", "pre_sha256": sha(X)}
PATCH = {"package": "engine", "file": "p.diff", "pre_sha256": {"srt/x.py": sha(X)}}
GOOD = diff(X, X.replace("x6 = 6", "x6 = 66"))


@pytest.mark.parametrize(
    ("tables", "files", "expected"),
    [
        ({"overlay": [OVERLAY, OVERLAY]}, {}, "engine/srt/x.py is changed twice, by x.py and x.py"),
        ({"overlay": [OVERLAY], "patch": [PATCH]}, {}, "engine/srt/x.py is changed twice, by p.diff and x.py"),
        ({"overlay": [{**OVERLAY, "pre_sha256": "0" * 64}]}, {}, f"pre_sha256 says {'0' * 64}, here it is {sha(X)}"),
        ({"patch": [{**PATCH, "pre_sha256": {"srt/x.py": "0" * 64}}]}, {}, f"{'0' * 64}, here it is {sha(X)}"),
        ({"patch": [{**PATCH, "pre_sha256": {}}]}, {}, f"srt/x.py without its pre_sha256, which is {sha(X)}"),
        ({"patch": [{**PATCH, "pre_sha256": {**PATCH["pre_sha256"], "y.py": "0" * 64}}]}, {}, "names y.py, which"),
        ({"overlay": [{**OVERLAY, "path": "srt/none.py"}]}, {}, "engine/srt/none.py, which is not installed"),
        ({"overlay": [{**OVERLAY, "package": "nowhere"}]}, {}, "the package nowhere is not installed"),
        ({"overlay": [OVERLAY]}, {"x.py": X}, "x.py changes nothing: engine/srt/x.py is installed like that"),
        ({"overlay": [OVERLAY]}, {"x.py": "x = (\n"}, "as x.py makes it does not compile: line 1: '(' was never"),
        ({"patch": [PATCH]}, {"p.diff": b"\xff\xfe"}, "p.diff is not UTF-8: byte 0 is 0xff"),
        (
            {"patch": [PATCH]},
            {"p.diff": GOOD.replace("x5", "y5")},
            "line 5 should be 'y5 = 5\\n', it is",
        ),
        ({"patch": [PATCH]}, {"p.diff": GOOD.replace("/srt/", "/../srt/")}, "pre_sha256 names srt/x.py, which p.diff"),
        (
            {"patch": [{"package": "engine", "file": "p.diff"}]},
            {"p.diff": GOOD.replace("/srt/", "/../../etc/")},
            "p.diff: '../../etc/x.py' is not a plain path inside",
        ),
        ({"overlay": [{**OVERLAY, "file": "gone.py"}]}, {}, "gone.py cannot be read: No such file or directory"),
        ({"overlay": [{**OVERLAY, "file": "folder"}]}, {"folder/x": ""}, "folder is not a file"),
        ({"overlay": [{**OVERLAY, "file": "../x.py"}]}, {}, "'../x.py' is not a plain path inside"),
        ({"overlay": [{**OVERLAY, "file": "/etc/passwd"}]}, {}, "'/etc/passwd' is not a plain path inside"),
        ({"overlay": [{**OVERLAY, "path": "../other/x.py"}]}, {}, "'../other/x.py' is not a plain path inside"),
        (
            {"plugin": [{"module": "json", "file": "x.py", "entry": "x1"}]},
            {},
            "the module json would hide an",
        ),
        ({"plugin": [{"module": "a-b", "file": "x.py"}]}, {}, "'a-b' cannot be a module's name"),
        ({"plugin": [{"module": "loop_witness", "file": "x.py"}]}, {}, "'loop_witness' cannot be a module's name"),
        ({"plugin": [{"module": "hooks", "file": "x.py"}]}, {}, "x.py does not define activate"),
        ({"plugin": [{"module": "hooks", "file": "x.py"}]}, {"x.py": "def f(:\n"}, "x.py does not compile: line 1: "),
        ({"plugin": [{"module": "hooks", "file": "a.py"}] * 2}, {"a.py": PLUGIN}, "hooks is declared twice"),
        ({"engaged": [{"kind": "log_regex", "pattern": "("}]}, {}, "is not a regular expression"),
        ({"engaged": [{"kind": "server_info", "pattern": "x"}]}, {}, "'x' is not key=value"),
    ],
)
def test_what_does_not_fit_is_named(place: Place, tables: Tables, files: dict[str, str | bytes], expected: str) -> None:
    """With the bundle, the file and what is there instead."""
    place.bundle("idea", {"x.py": "x1 = 0\n", "p.diff": GOOD, **files}, **tables)

    said = place.refusal("idea")

    assert expected in said
    assert "idea" in said


@pytest.mark.parametrize("link", ["x.py", "folder"])
def test_a_symbolic_link_is_refused(place: Place, tmp_path: Path, link: str) -> None:
    """Its target is outside of what is hashed and copied."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "x.py").write_text("x1 = 0\n")
    file = "x.py" if link == "x.py" else "folder/x.py"
    place.bundle("idea", overlay=[{**OVERLAY, "file": file}])
    target = tmp_path / "outside" / "x.py" if link == "x.py" else tmp_path / "outside"
    (place.candidates / "idea" / link).symlink_to(target)

    assert f"{file} goes through a symbolic link, {link}" in place.refusal("idea")


def test_a_file_that_is_too_large_is_refused_unread(place: Place) -> None:
    """64 MiB are allowed."""
    place.bundle("idea", {"x.py": ""}, overlay=[OVERLAY])
    with (place.candidates / "idea" / "x.py").open("wb") as file:
        file.truncate((64 << 20) + 1)

    assert "x.py has 67 MB; 64 MiB are allowed" in place.refusal("idea")


def test_a_path_that_leads_out_of_the_package_is_refused(place: Place, tmp_path: Path) -> None:
    """Also where the package itself has a link."""
    (place.package / "out").symlink_to(tmp_path)
    place.bundle("idea", {"x.py": ""}, overlay=[{"package": "engine", "path": "out/x.py", "file": "x.py"}])

    assert "engine/out/x.py leads out of the package" in place.refusal("idea")


# plugins, kernels, transforms


def test_modules_of_a_child_win_over_its_parents(place: Place) -> None:
    """In the parent's place; the child's others come after."""
    files = {"a.py": PLUGIN, "b.py": PLUGIN}
    place.bundle("old", files, plugin=[{"module": "one", "file": "a.py"}, {"module": "two", "file": "a.py"}])
    later = {"b.py": f"{PLUGIN}#\n", "c.py": PLUGIN}
    place.bundle(
        "new", later, parent="old", plugin=[{"module": "three", "file": "c.py"}, {"module": "one", "file": "b.py"}]
    )

    plugins = place.flat("new").content.plugins

    assert [("one", sha(f"{PLUGIN}#\n")), ("two", sha(PLUGIN)), ("three", sha(PLUGIN))] == [
        (plugin.module, plugin.sha256) for plugin in plugins
    ]


def test_a_kernel_and_a_plugin_of_one_name_are_refused(place: Place) -> None:
    """Python would load one of them twice."""
    kernel = {"name": "k", "language": "cuda", "sources": ["k.cu"], "module": "hooks.py"}
    plugin = {"module": "hooks", "file": "hooks.py"}
    place.bundle("idea", {"hooks.py": PLUGIN, "k.cu": ""}, kernel=[kernel], plugin=[plugin])

    assert "idea: two modules are called hooks" == place.refusal("idea")


def test_a_kernel_needs_a_gpu(place: Place) -> None:
    """Everything else about it is checked before."""
    kernel = {"name": "k", "language": "cuda", "sources": ["k.cu"], "module": "dispatch.py"}
    content = place.flat(place.bundle("idea", {"dispatch.py": PLUGIN, "k.cu": "void k();"}, kernel=[kernel])).content

    check_target(content, engine_version=None, device="NVIDIA H200", model_sha256="")
    with pytest.raises(BundleError, match="the bundle has a kernel, k, and kernels need a GPU; this machine has none"):
        check_target(content, engine_version=None, device="cpu", model_sha256="")


@pytest.mark.parametrize("name", ["hooks.py", "k.cu", "k.py", "dispatch.py", "transform.py", "x.py", "p.diff"])
def test_every_file_is_part_of_the_identity(place: Place, name: str) -> None:
    """One more comment in any of them is another bundle."""
    files = {
        "hooks.py": PLUGIN,
        "k.cu": "",
        "k.py": "",
        "dispatch.py": PLUGIN,
        "transform.py": "def transform(a, b): pass\n",
        "x.py": "",
        "p.diff": GOOD,
    }
    tables = {
        "plugin": [{"module": "hooks", "file": "hooks.py"}],
        "kernel": [{"name": "k", "language": "triton", "sources": ["k.cu", "k.py"], "module": "dispatch.py"}],
        "model": [{"script": "transform.py"}],
        "overlay": [{"package": "engine", "path": "srt/y.py", "file": "x.py"}],
        "patch": [PATCH],
    }
    before = place.flat(place.bundle("idea", files, **tables))
    changed = GOOD.replace("66", "67") if name == "p.diff" else f"{files[name]}# more\n"

    after = place.flat(place.bundle("idea", {**files, name: changed}, **tables))

    assert before.sha256 != after.sha256
    assert differences(before.content, after.content)
    assert set(before.content.file_hashes) == set(before.files)


# effective bundles


def test_a_bundle_of_flags_hashes_as_it_always_did() -> None:
    """The stored original was written before there was code."""
    stored = read_effective(REPOSITORY / "candidates" / "original")

    assert "b855c665419b00cbdad1117d6fa26bcf344688dcd4392388acaad9858e66c06c" == stored.content.digest()
    assert "1fdf9bfa05e33223d8002b3bf986a4942ee196019d9dc5030c5e0ecc226e9bc2" == stored.expected_seal


def test_an_effective_bundle_carries_its_files(place: Place, tmp_path: Path) -> None:
    """It reads back whole, and names what was edited or is missing."""
    flattened = place.flat(place.patched("idea", X.replace("x6 = 6", "x6 = 66")))
    made = Fake(python="python3").effective(flattened)
    made.write(tmp_path / "out", flattened.files)

    back = read_effective(tmp_path / "out")

    assert (made, "loop.fake.plugins") == (back, back.plugin_group)
    assert flattened.files == read_files(tmp_path / "out", back.content.file_hashes)
    (file,) = (tmp_path / "out" / "files").iterdir()
    file.write_text("edited")
    with pytest.raises(BundleError, match=f"{file.name} was edited after it was written"):
        read_files(tmp_path / "out", back.content.file_hashes)
    file.unlink()
    with pytest.raises(BundleError, match=f"{file.name} cannot be read: No such file"):
        read_files(tmp_path / "out", back.content.file_hashes)
    with pytest.raises(BundleError, match=r"idea: the file .* of its content is gone"):
        made.write(tmp_path / "again")


def test_a_child_of_what_is_shipped_builds_on_its_files(place: Place) -> None:
    """Without the TOML that they came from."""
    old = place.flat(place.patched("old", text := X.replace("x2 = 2", "x2 = 22")))
    place.shipped = Fake(python="python3").effective(old)
    place.shipped_files = old.files
    place.patched("new", text.replace("x11 = 11", "x11 = 111"), old=text, parent="shipped")

    flattened = place.flat("new")

    assert text.replace("x11 = 11", "x11 = 111") == text_of(flattened, "engine/srt/x.py")


def test_what_is_shipped_is_refused_as_a_parent_when_the_package_has_changed(place: Place) -> None:
    """With both hashes."""
    old = place.flat(place.patched("old", X.replace("x2 = 2", "x2 = 22")))
    place.shipped, place.shipped_files = Fake(python="python3").effective(old), old.files
    now = place.install("srt/x.py", X.replace("x12", "y12"))

    said = place.refusal(place.bundle("new", parent="shipped"))

    assert f"what is shipped, no longer fits: it replaces engine/srt/x.py of {sha(X)}, installed is {now}" in said


def test_what_a_bundle_changes_is_shown_by_element() -> None:
    """By the first digits of its hash."""
    plugin = LoadedPlugin(module="hooks", entry="activate", sha256="a" * 64)
    plain = effective().content
    code = plain.model_copy(update={"plugins": (plugin,), "engaged": (Engaged(kind="receipt", pattern="x"),)})

    assert {
        "engaged.receipt x": (None, True),
        "plugins.hooks": (None, plugin.digest()[:16]),
    } == differences(plain, code)
    assert Content.model_validate(code.document()) == code
