"""The period and the scope of a report."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """From `since` up to but not including `until`, both in UTC and on whole minutes.

    name: "24h", "day", "custom"; label: "Last 24 hours"; zone: IANA name of the calendar's zone.
    """

    name: str
    label: str
    since: datetime
    until: datetime
    zone: str

    @property
    def seconds(self) -> float:
        return (self.until - self.since).total_seconds()

    @property
    def hours(self) -> float:
        return self.seconds / 3600


class ScopeKind(StrEnum):
    ALL = "all"
    USER = "user"
    GROUP = "group"
    GPU = "gpu"
    HOST = "host"


@dataclass(frozen=True, slots=True)
class Scope:
    """Subject of a report. `name` is "" for everything."""

    kind: ScopeKind = ScopeKind.ALL
    name: str = ""

    @property
    def text(self) -> str:
        """As it stands in the address: "all", "user:alice"."""
        return self.kind.value if self.kind is ScopeKind.ALL else f"{self.kind.value}:{self.name}"


class ReportRefused(Exception):
    """A report that can't be made: `field` of the request, and a sentence for the user."""

    def __init__(self, field: str, text: str) -> None:
        super().__init__(text)
        self.field, self.text = field, text
