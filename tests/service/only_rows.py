"""For pytest -p: only the tests that touch rows; another database changes nothing for the rest."""

from __future__ import annotations

import pytest
from django.test import TransactionTestCase


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items[:] = [item for item in items if _touches_rows(item)]


def _touches_rows(item: pytest.Item) -> bool:
    cls = getattr(item, "cls", None)
    return (
        "db" in getattr(item, "fixturenames", ())
        or item.get_closest_marker("django_db") is not None
        or (cls is not None and issubclass(cls, TransactionTestCase))
    )
