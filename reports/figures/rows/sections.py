"""Registered sections: subjects above or beside the reports add a table of their own."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from django.conf import settings

from monitor.owners.identity.policy import Viewer
from monitor.runtime.rows.item_isolation import ItemIsolation
from reports.figures.facts import Table
from reports.periods.facts import Period, Scope

# The part of the subject that the viewer may see in the period; None: nothing to show.
Section = Callable[[Period, Scope, Viewer, datetime], Table | None]
_registered: dict[str, Section] = {}


def register(name: str, section: Section) -> None:
    """Add a section to all reports; a second registration under the name replaces the first."""
    _registered[name] = section


def tables(period: Period, scope: Scope, viewer: Viewer, now: datetime) -> tuple[Table, ...]:
    """The sections in the order of registration. A section that fails is reported and left out."""
    tables: list[Table] = []

    def add(item: tuple[str, Section]) -> None:
        table = item[1](period, scope, viewer, now)
        if table is not None:
            tables.append(table)

    if _registered:
        isolation = ItemIsolation(settings.CONFIG.node, "report sections")
        isolation.each(list(_registered.items()), lambda item: item[0], add, now)
    return tuple(tables)
