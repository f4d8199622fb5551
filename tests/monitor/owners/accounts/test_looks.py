"""No two owners look the same."""

from __future__ import annotations

import string

from hypothesis import given
from hypothesis import strategies as st

from monitor.owners.policy import COLOURS, PATTERNS, Look, looks, next_look

names = st.text(string.ascii_lowercase + string.digits + "-.é ", min_size=1, max_size=12)


@given(st.dictionaries(names, st.floats(0, 1e6), min_size=40, max_size=40))
def test_forty_owners_all_differ_in_colour_or_pattern_and_in_their_mark(
    sizes: dict[str, float],
) -> None:
    given_looks = looks(sizes)

    assert given_looks.keys() == sizes.keys()
    assert len({look.css for look in given_looks.values()}) == 40
    assert len({look.mark for look in given_looks.values()}) == 40


@given(st.dictionaries(names, st.floats(0, 1e6), min_size=1, max_size=40))
def test_the_largest_six_have_the_colours_and_all_others_are_neutral(
    sizes: dict[str, float],
) -> None:
    given_looks = looks(sizes)
    coloured = {name for name, look in given_looks.items() if look.colour is not None}

    assert len(coloured) == min(COLOURS, len(sizes))
    least = min(sizes[name] for name in coloured)
    assert all(sizes[name] <= least for name in sizes.keys() - coloured)


@given(st.lists(names, min_size=40, max_size=40, unique=True))
def test_owners_who_come_one_by_one_differ_too(order: list[str]) -> None:
    known: dict[str, Look] = {}
    for name in order:
        known[name] = next_look(name, known)

    assert len({look.css for look in known.values()}) == 40


def test_beyond_all_patterns_the_marks_still_differ() -> None:
    many = looks({f"user{n}": float(n) for n in range(COLOURS + 2 * PATTERNS)})

    assert len({(look.css, look.mark) for look in many.values()}) == len(many)


def test_a_rank_that_changes_among_the_largest_changes_no_look() -> None:
    before = looks({"alice": 9.0, "bob": 8.0, "charlie": 1.0})

    assert looks({"alice": 2.0, "bob": 8.0, "charlie": 1.5}) == before


def test_a_mark_is_made_of_the_name() -> None:
    given_looks = looks({"alice": 1.0, "albert": 1.0, "x": 1.0})

    assert {name: look.mark for name, look in given_looks.items()} == {
        "albert": "al",
        "alice": "ai",
        "x": "x0",
    }
