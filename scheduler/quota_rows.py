"""Rows <-> facts: the quotas in force: a person's own, else their groups', else the default."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import Any

from django.contrib.auth.models import User
from django.db.models import Q

from scheduler import people
from scheduler.models import Quota

FIGURES = tuple(field.name for field in fields(people.Quota))


class Quotas:
    """All quotas, read once: who asks for a person gets theirs without another query."""

    def __init__(self) -> None:
        rows = list(Quota.objects.all())
        self._users = {row.user_id: row for row in rows if row.user_id is not None}
        self._groups = {row.group_id: row for row in rows if row.group_id is not None}
        self._default = [row for row in rows if row.user_id is None and row.group_id is None]
        users = User.objects.filter(pk__in=self._users) if self._users else User.objects.none()
        self._names = dict(users.values_list("username", "pk"))
        self._members = self._groups_of_people() if self._groups else {}
        self._found: dict[str, people.Quota] = {}

    def of(self, name: str) -> people.Quota:
        """Theirs; else the most generous of their groups'; else the default."""
        found = self._found.get(name)
        if found is None:
            found = self._found[name] = _joined(self.rows(name))
        return found

    def rows(self, name: str) -> list[Quota]:
        """Those that make up the one that holds for a person."""
        if name in self._names:
            return [self._users[self._names[name]]]
        return [self._groups[group] for group in self._members.get(name, ())] or self._default

    def agreed(self) -> frozenset[str]:
        """Who has a quota of their own, or by a group."""
        return frozenset(self._names) | frozenset(self._members)

    def _groups_of_people(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        pairs = User.objects.filter(groups__in=self._groups).values_list("username", "groups")
        for name, group in pairs:
            if group in self._groups:
                found.setdefault(name, []).append(group)
        return found


def of_person(person: User) -> people.Quota:
    """What holds for one of them, by one query."""
    theirs = Q(user=person) | Q(group__in=person.groups.all())
    rows = list(Quota.objects.filter(theirs | Q(user__isnull=True, group__isnull=True)))
    own = [row for row in rows if row.user_id is not None]
    chosen = own or [row for row in rows if row.group_id is not None] or rows
    return _joined(chosen)


def _joined(rows: Sequence[Quota]) -> people.Quota:
    facts = [people.Quota(**{name: getattr(row, name) for name in FIGURES}) for row in rows]
    return most_generous(facts) if facts else people.Quota()


def most_generous(quotas: Sequence[people.Quota]) -> people.Quota:
    """Figure by figure; no limit is more than any, and less is kept back for some jobs."""
    best: dict[str, Any] = {
        name: _most([getattr(quota, name) for quota in quotas]) for name in FIGURES
    }
    best["reserved_pct"] = min(quota.reserved_pct for quota in quotas)
    return people.Quota(**best)


def _most(figures: Iterable[float | None]) -> float | None:
    found = list(figures)
    return None if None in found else max(figure for figure in found if figure is not None)
