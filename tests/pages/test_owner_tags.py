from __future__ import annotations

import pytest

from gpucoord_site.demo.past import PEOPLE
from monitor.owners import rows as looks_rows
from monitor.templatetags.monitor_tags import owner, user_colour
from reports.render import charts


@pytest.fixture(autouse=True)
def _no_looks() -> None:
    """Earlier tests have given looks to other users."""
    looks_rows.forget()


def test_a_person_looks_the_same_each_time() -> None:
    assert user_colour("alice") == user_colour("alice")
    assert f'class="owner {user_colour("alice")}"' in owner("alice")


def test_forty_users_differ_by_colour_or_pattern() -> None:
    looks = {user_colour(f"person{number}") for number in range(40)}

    assert len(looks) == 40


@pytest.mark.parametrize("nobody", [None, ""])
def test_an_unknown_owner_has_no_colour(nobody: str | None) -> None:
    assert user_colour(nobody) == "u-none"


def test_the_users_of_the_demo_have_different_colours_on_pages_and_in_reports() -> None:
    assert len({user_colour(name).split()[0] for name in PEOPLE}) == len(PEOPLE)
    looks = {name: looks_rows.look_of(name) for name in PEOPLE}
    assert len({charts.colour(name, looks) for name in PEOPLE}) == len(PEOPLE)
