"""For pytest -p: the tests that touch rows, each function once, each property with few examples.

Another database changes nothing for the rest, and nothing from one tested value to the next.
"""

from __future__ import annotations

import pytest
from django.test import TransactionTestCase
from hypothesis import settings

EXAMPLES = 5


def pytest_collection() -> None:
    """After the profile of the tests was loaded, before they are."""
    settings.register_profile("few", settings.get_profile("steady"), max_examples=EXAMPLES)
    settings.load_profile("few")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    first = {item.nodeid.partition("[")[0]: item for item in reversed(items) if _touches_rows(item)}
    items[:] = [item for item in items if first.get(item.nodeid.partition("[")[0]) is item]


def _touches_rows(item: pytest.Item) -> bool:
    cls = getattr(item, "cls", None)
    return (
        "db" in getattr(item, "fixturenames", ())
        or item.get_closest_marker("django_db") is not None
        or (cls is not None and issubclass(cls, TransactionTestCase))
    )
