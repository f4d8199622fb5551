"""Of requests to pages: the viewer, posted texts, and filters, which ignore unknown values.

It imports nothing that only REST needs, as REST is loaded after the first frames.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self
from urllib.parse import urlencode

from django.core.exceptions import BadRequest
from django.http import HttpRequest
from msgspec import Struct

from monitor.facts.input_rules import (
    character_problem,
    is_number,
)
from monitor.owners.policy import Viewer

# The kind of a validation error whose message is for the user as it is.
SENTENCE = "sentence"


def viewer_of(request: HttpRequest) -> Viewer:
    """The user of this request, as the privacy rules need it."""
    return Viewer(request.user.get_username(), operator=bool(getattr(request.user, "is_staff", 0)))


class InvalidInput(Exception):
    """422: what is wrong, by field."""

    def __init__(self, errors: Sequence[tuple[str, str]]) -> None:
        super().__init__("; ".join(f"{field}: {text}" for field, text in errors))
        self.errors = tuple(errors)


class RefusedText(BadRequest):
    """422: the message is a sentence for the user."""


def posted_text(request: HttpRequest, name: str, longest: int) -> str:
    """A field without surrounding spaces, cut at `longest` characters.

    Raises RefusedText for control and format characters other than line ends.
    """
    text = request.POST.get(name, "").strip()[:longest]
    if problem := character_problem(text, lines=True):
        raise RefusedText(problem)
    return text


class ListFilters(Struct, frozen=True):
    """Filters of a page of a list, one text field each; `page` counts from 1."""

    PER_PAGE: ClassVar[int] = 50
    MOST_PAGES: ClassVar[int] = 2000
    LONGEST_TEXT: ClassVar[int] = 150

    page: int = 1

    @classmethod
    def from_query(cls, query: Mapping[str, str]) -> Self:
        """Unknown filters and values are ignored."""
        values: dict[str, Any] = {}
        for name in cls._names():
            text = str(query.get(name, "")).replace("\0", "").strip()[: cls.LONGEST_TEXT]
            if (value := cls.accepted(name, text)) is not None:
                values[name] = value
        number = str(query.get("page", "")).strip()
        if is_number(number, digits=8):
            values["page"] = min(max(int(number), 1), cls.MOST_PAGES)
        return cls(**values)

    @classmethod
    def accepted(cls, name: str, text: str) -> str | None:
        """The value of a filter. None = its default. Pages override it to refuse values."""
        return text or None

    @classmethod
    def _names(cls) -> list[str]:
        return [name for name in cls.__struct_fields__ if name != "page"]

    @property
    def skip(self) -> int:
        """The number of lines before this page."""
        return (self.page - 1) * self.PER_PAGE

    def with_(self, **changes: str) -> str:
        """The query with these changes, from the first page on."""
        values = {name: str(getattr(self, name)) for name in self._names()} | changes
        return f"?{urlencode({name: value for name, value in values.items() if value})}"

    def newer(self) -> str | None:
        """The query of the previous page; None on the first one."""
        return self.with_(page=str(self.page - 1)) if self.page > 1 else None

    def older(self, matches: int) -> str | None:
        """The query of the next page, if more than one page of lines matched."""
        return self.with_(page=str(self.page + 1)) if matches > self.PER_PAGE else None

    def is_set(self, *names: str) -> bool:
        """Whether any of these filters, by default any at all, has a value."""
        return any(getattr(self, name) for name in names or self._names())
