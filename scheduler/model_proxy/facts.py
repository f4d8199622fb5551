"""Facts of the endpoint for language models: callers, requests, refusals."""

from __future__ import annotations

from dataclasses import dataclass, field

from scheduler.facts.people import Quota
from scheduler.facts.prompts import DayUse


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The user of a token, with what the token allows and the user's day so far.

    written: requests of this process that `used` counts.
    """

    user_id: int
    name: str
    may_submit: bool = True
    quota: Quota = field(default_factory=Quota)
    used: DayUse = field(default_factory=DayUse)
    written: int = 0


class Refused(Exception):
    """A request is answered with an error in OpenAI's shape. retry_after_s: None = never."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type_: str = "invalid_request_error",
        code: str | None = None,
        param: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.type = status, message, type_
        self.code, self.param, self.retry_after_s = code, param, retry_after_s


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """A request of the endpoint. path: below the base, such as `chat/completions`.

    body: as it came; the instance gets the same bytes.
    """

    path: str
    model: str
    body: bytes
    streams: bool = False
    priority: int = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of the endpoint; sizes in bytes. body_s: the time in which a body must arrive.

    A user gets a part of the connections and of the memory, so that others find some.
    """

    body: int = 16 * 1024**2
    body_s: float = 60.0
    # Of all requests that arrive, wait or run.
    all_bodies: int = 256 * 1024**2
    bodies_of_user: int = 64 * 1024**2
    requests_of_user: int = 100
    header: int = 16 * 1024
