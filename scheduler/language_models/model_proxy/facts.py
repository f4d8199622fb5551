"""Facts of the endpoint for language models: callers, requests, refusals."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Protocol

from scheduler.facts.language_models import DayUse
from scheduler.facts.people import Quota


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The user of a token, with what the token allows and the user's day so far.

    written: requests of this process that `used` counts. is_passed_on: the endpoint of another host
    has checked the token, and passes the request on.
    """

    user_id: int
    name: str
    may_submit: bool = True
    quota: Quota = field(default_factory=Quota)
    used: DayUse = field(default_factory=DayUse)
    written: int = 0
    is_passed_on: bool = False


class Refused(Exception):
    """A request is answered with an error in OpenAI's shape. retry_after_s: None = never.

    repeats: whether clients may send the request again by themselves. closes: the connection ends.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type_: str = "invalid_request_error",
        code: str | None = None,
        param: str | None = None,
        retry_after_s: int | None = None,
        repeats: bool = True,
        closes: bool = False,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.type = status, message, type_
        self.code, self.param, self.retry_after_s = code, param, retry_after_s
        self.repeats, self.closes = repeats, closes


# Names in lower case, and values.
Headers = tuple[tuple[bytes, bytes], ...]


class Upload(Protocol):
    """A form that is not in memory. size: in bytes."""

    @property
    def size(self) -> int: ...

    def pieces(self) -> AsyncIterator[bytes]: ...

    def rename(self, model: str) -> None:
        """Its field `model` has this value from now on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """A request of the endpoint. path: below the base, such as `chat/completions`.

    model: as the client names it. body: as it came; the instance gets the same bytes, unless the
    model was named by an alias. headers: those that the instance gets. query: without "?".
    """

    path: str
    model: str
    body: bytes | Upload
    streams: bool = False
    priority: int = 3
    headers: Headers = ()
    query: bytes = b""

    @property
    def target(self) -> str:
        """Path and query below the base."""
        return f"{self.path}?{self.query.decode('latin-1')}" if self.query else self.path


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of the endpoint; sizes in bytes. body_s: the time in which a body must arrive.

    A user gets a part of the connections, of the memory and of the disk, so that others find some.
    Uploads are forms with files, such as sound; they are on disk until they are answered.
    """

    body: int = 16 * 1024**2
    body_s: float = 60.0
    upload: int = 256 * 1024**2
    upload_s: float = 600.0
    all_uploads: int = 4 * 1024**3
    uploads_of_user: int = 1024**3
    # Of all requests that arrive, wait or run.
    all_bodies: int = 256 * 1024**2
    bodies_of_user: int = 64 * 1024**2
    requests_of_user: int = 100
    header: int = 16 * 1024
