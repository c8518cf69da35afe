"""Held-back prompts: like the visible ones, new in every confirmation, and known to nobody before it."""

import pytest

from loop import prompts
from loop.errors import InputError
from loop.heldback import ROOT, derive_seed, heldback_counts, heldback_prompts
from loop.suites import load_suite
from tests.conftest import REPOSITORY

SECRET = "ab" * 32
KEPT = "a root that is long enough"


@pytest.mark.parametrize("suite_id", ["smoke", "quadrants", "h200_cut"])
def test_they_are_like_the_visible_ones_and_none_of_them(suite_id: str) -> None:
    """A quarter as many of each category, answers as long, none longer than the longest."""
    visible = load_suite(REPOSITORY / "workloads", suite_id).check

    made = heldback_prompts(visible, "a seed")

    assert {p.category for p in visible} == {p.category for p in made}
    assert len(visible) / 4 - 4 <= len(made) <= len(visible) / 4 + 4
    assert sum(heldback_counts(visible).values()) >= len(made)
    assert set() == {p.text for p in visible} & {p.text for p in made}
    lengths = {p.category: p.max_new_tokens for p in visible}
    assert [] == [p.id for p in made if p.max_new_tokens != lengths[p.category]]
    assert max(len(p.text) for p in made) <= max(len(p.text) for p in visible)


def test_another_seed_gives_other_prompts() -> None:
    """And the same one the same: whoever has the record can make them again."""
    visible = load_suite(REPOSITORY / "workloads", "smoke").check

    assert heldback_prompts(visible, "a") == heldback_prompts(visible, "a")
    assert set() == {p.text for p in heldback_prompts(visible, "a")} & {p.text for p in heldback_prompts(visible, "b")}


def test_a_category_without_a_generator_has_none() -> None:
    """Prompts from somebody's own traffic."""
    own = (prompts.Prompt(id="p", category="ours", text="a text", max_new_tokens=8),)

    assert ({}, ()) == (heldback_counts(own), heldback_prompts(own, "a"))


def test_every_round_has_a_seed_of_its_own() -> None:
    """From the root that is kept outside the tree, else from the round's secret."""
    rooted = [derive_seed({ROOT: KEPT}, SECRET, round_id) for round_id in ("R000001-aaaa", "R000002-bbbb")]
    alone = [derive_seed({}, secret, "R000001-aaaa") for secret in (SECRET, "cd" * 32)]

    assert 4 == len({*rooted, *alone})
    assert rooted[0] == derive_seed({ROOT: KEPT}, "cd" * 32, "R000001-aaaa")
    assert alone[0] == derive_seed({ROOT: ""}, SECRET, "R000001-aaaa")
    assert KEPT not in str(rooted)


def test_a_root_that_could_be_guessed_is_refused() -> None:
    """Seeds are revealed."""
    with pytest.raises(InputError, match=f"{ROOT} has 7 characters: it could be guessed") as caught:
        derive_seed({ROOT: "hunter2"}, SECRET, "R000001-aaaa")

    assert "hunter2" not in str(caught.value)
