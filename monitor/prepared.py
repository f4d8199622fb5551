"""Questions that the loops ask again and again in the same words: their SQL is made once.

Putting a query together takes Django several times as long as SQLite takes to answer it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from django.db.models import Model, QuerySet

P = ParamSpec("P")
M = TypeVar("M", bound=Model)


def prepared(ask: Callable[P, QuerySet[M]]) -> Callable[P, list[M]]:
    """The rows that `ask` means, whole. Its arguments are few and come again: a host, a name."""
    made: dict[object, tuple[type[M], str, tuple[object, ...]]] = {}

    @wraps(ask)
    def answer(*args: P.args, **kwargs: P.kwargs) -> list[M]:
        key = (args, tuple(kwargs.items()))
        if key not in made:
            rows = ask(*args, **kwargs)
            made[key] = (rows.model, *rows.query.sql_with_params())
        model, sql, params = made[key]
        return list(model._default_manager.raw(sql, params))

    return answer
