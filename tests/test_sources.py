"""Sources: what a bundle's code comes to, and everything that does not fit."""

import sys
from pathlib import Path
from typing import Any

import pytest

from loop.elements import Overlay, Patch, Plugin
from loop.errors import BundleError
from loop.packages import Package, find_package, sha256_of_bytes
from loop.sources import Elements, Installed, Sources, apply_elements
from tests.test_diffs import AFTER, BEFORE, diff_of

BEFORE_SHA = sha256_of_bytes(BEFORE.encode())
PATCHED = {"package": "gadget", "file": "p.diff", "pre_sha256": {"core.py": BEFORE_SHA}}
REPLACED = {"package": "gadget", "path": "core.py", "file": "core.py", "pre_sha256": BEFORE_SHA}


@pytest.fixture
def installed(tmp_path: Path) -> Installed:
    """A Python with a package called gadget."""
    package = tmp_path / "site" / "gadget"
    package.mkdir(parents=True)
    (package / "core.py").write_text(BEFORE)
    (package / "odd.py").write_bytes(b"# \xff\n")
    return Installed(python=sys.executable, find=lambda name: Package(name=name, directory=package))


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A bundle's directory with a diff, a whole file and a plugin."""
    directory = tmp_path / "candidates" / "idea"
    directory.mkdir(parents=True)
    (directory / "p.diff").write_text(diff_of(BEFORE, AFTER))
    (directory / "core.py").write_text(AFTER)
    (directory / "hook.py").write_text("def activate():\n    pass\n")
    return directory


def elements(directory: Path, **tables: list[dict[str, Any]]) -> Elements:
    """What `bundle.toml` with these tables declares."""
    return Elements.model_validate({"directory": directory, **tables})


def test_a_patch_and_an_overlay_of_the_same_text_are_the_same_content(directory: Path, installed: Installed) -> None:
    """The identity is what runs, not how it was written down."""
    patched = apply_elements(Sources(), elements(directory, patch=[PATCHED]), installed)
    replaced = apply_elements(Sources(), elements(directory, overlay=[REPLACED]), installed)

    assert patched == replaced
    (item,) = patched.replaced.values()
    assert (BEFORE_SHA, AFTER.encode()) == (item.pre_sha256, patched.files[item.post_sha256])


def test_a_child_patches_what_its_parent_leaves(directory: Path, installed: Installed) -> None:
    """The file keeps the hash that it has as installed: that is what production looks at."""
    parent = apply_elements(Sources(), elements(directory, overlay=[REPLACED]), installed)
    (directory / "p.diff").write_text(diff_of(AFTER, AFTER.replace("return 2", "return 4")))
    again = {**PATCHED, "pre_sha256": {"core.py": sha256_of_bytes(AFTER.encode())}}

    child = apply_elements(parent, elements(directory, patch=[again]), installed)

    (item,) = child.replaced.values()
    assert (BEFORE_SHA, 2) == (item.pre_sha256, len(child.files))
    assert b"return 4" in child.files[item.post_sha256]


def test_a_child_made_for_the_installed_file_does_not_fit_its_parents(directory: Path, installed: Installed) -> None:
    """The message says whose the file is."""
    parent = apply_elements(Sources(), elements(directory, overlay=[REPLACED]), installed)

    with pytest.raises(BundleError, match=r"p\.diff: gadget/core\.py as its parent leaves it hashes to"):
        apply_elements(parent, elements(directory, patch=[PATCHED]), installed)


def test_a_new_file_needs_no_pre_image_and_must_be_new(directory: Path, installed: Installed) -> None:
    """Without a pre-image there must be no such file."""
    new = {"package": "gadget", "path": "extra/new.py", "file": "core.py"}

    made = apply_elements(Sources(), elements(directory, overlay=[new]), installed)

    assert [None] == [item.pre_sha256 for item in made.replaced.values()]
    with pytest.raises(BundleError, match=r"gadget/core\.py exists as installed: pre_sha256 must say"):
        apply_elements(Sources(), elements(directory, overlay=[{**new, "path": "core.py"}]), installed)


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"patch": [{**PATCHED, "pre_sha256": {"core.py": "0" * 64}}]}, "the change was made for 0000000000000000"),
        ({"patch": [{**PATCHED, "pre_sha256": {}}]}, "pre_sha256 lacks core.py, which the diff changes"),
        (
            {"patch": [{**PATCHED, "pre_sha256": {"core.py": BEFORE_SHA, "x.py": "0" * 64}}]},
            "pre_sha256 names x.py, which the diff does not change",
        ),
        ({"patch": [PATCHED], "overlay": [REPLACED]}, "core.py and p.diff both change gadget/core.py"),
        ({"overlay": [REPLACED, REPLACED]}, "core.py and core.py both change gadget/core.py"),
        ({"overlay": [{**REPLACED, "file": "none.py"}]}, "none.py does not exist"),
        ({"overlay": [{**REPLACED, "path": "gone.py"}]}, "gadget/gone.py does not exist as installed"),
        ({"overlay": [{**REPLACED, "file": "p.diff"}]}, "p.diff: line 3 is no Python"),
        ({"plugin": [{"module": "hook", "file": "p.diff"}]}, "p.diff: line 3 is no Python"),
        ({"plugin": [{"module": "json", "file": "hook.py"}]}, "module 'json' would hide an installed one"),
        ({"plugin": [{"module": "hook", "file": "hook.py"}] * 2}, "there is another plugin called 'hook'"),
    ],
)
def test_code_that_does_not_fit_is_refused_with_the_file(
    directory: Path, installed: Installed, tables: dict[str, Any], message: str
) -> None:
    """Before anything starts."""
    with pytest.raises(BundleError) as refusal:
        apply_elements(Sources(), elements(directory, **tables), installed)

    assert message in refusal.value.what


def test_a_hunk_that_does_not_apply_is_said_of_its_file(directory: Path, installed: Installed) -> None:
    """Diff, package and file come first."""
    (directory / "p.diff").write_text(diff_of(BEFORE.replace("return 2", "return 5"), AFTER))

    with pytest.raises(BundleError, match=r"p\.diff: gadget/core\.py: hunk @@ .* does not apply: line 9 should be"):
        apply_elements(Sources(), elements(directory, patch=[PATCHED]), installed)


def test_a_link_is_no_file_of_the_bundle(directory: Path, installed: Installed) -> None:
    """What it points to could change without changing the bundle."""
    (directory / "core.py").unlink()
    (directory / "core.py").symlink_to("/etc/hosts")

    with pytest.raises(BundleError, match="is a symbolic link"):
        apply_elements(Sources(), elements(directory, overlay=[REPLACED]), installed)


@pytest.mark.parametrize("path", ["../x.py", "/etc/x.py", "a/../x.py", "", "a\\b.py", "./x.py"])
def test_a_path_out_of_the_bundle_is_refused(path: str) -> None:
    """Whichever field it stands in."""
    for made in (
        lambda: Overlay.model_validate({**REPLACED, "file": path}),
        lambda: Overlay.model_validate({**REPLACED, "path": path}),
        lambda: Patch.model_validate({**PATCHED, "file": path}),
        lambda: Plugin.model_validate({"module": "hook", "file": path}),
    ):
        with pytest.raises(ValueError, match="is not a plain relative path"):
            made()


def test_a_package_is_found_where_the_servers_python_has_it() -> None:
    """Without importing it; one that is not there is named."""
    assert Path(sys.modules["loop"].__file__ or "").parent == find_package(sys.executable, "loop").directory
    with pytest.raises(BundleError, match="has no package 'nosuchpackage' to patch"):
        find_package(sys.executable, "nosuchpackage")
