from __future__ import annotations

import pytest
from django.contrib.auth.models import User

from monitor.models import Gpu
from monitor.runtime.rows.database import FilledTables


@pytest.mark.django_db
def test_one_query_says_which_tables_have_rows(django_assert_num_queries: object) -> None:
    filled = FilledTables(User, Gpu)
    User.objects.create_user("alice")

    with django_assert_num_queries(1):  # type: ignore[operator]
        assert filled.read() == (True, False)

    User.objects.all().delete()
    assert filled.read() == (False, False)
