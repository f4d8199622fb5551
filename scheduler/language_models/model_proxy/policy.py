"""Policy: OpenAI's protocol as far as the endpoint reads it: requests, errors, events, usage.

So is Anthropic's form, `messages`. Bodies and answers are passed on as they are; nothing is
translated.

Policy: streams of server-sent events, by the HTML standard: where an event ends.

Policy: how often tokens that are not known to be valid are looked up for one address.

A look-up reads the database. An address has LOOKUPS at once and then one each INTERVAL_S. Tokens
that were valid before do not count, so a flood of invalid ones does not stop their users.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Collection, Iterable
from enum import Enum
from hashlib import sha256
from typing import Any, Protocol

from msgspec import Struct, field

from monitor.facts import input_rules
from scheduler.facts.jobs import PRIORITIES
from scheduler.facts.language_models import DEFAULT_PRIORITY, DayUse
from scheduler.facts.people import Quota

# Facts of the endpoint for language models: callers, requests, refusals.


class Caller(Struct, frozen=True, kw_only=True):
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


class ModelRequest(Struct, frozen=True, kw_only=True):
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


class Limits(Struct, frozen=True, kw_only=True):
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


# Which headers the endpoint passes on, to an instance and back to the client.
#
# All headers are end-to-end except the named ones: those of one connection (RFC 9110, section
# 7.6.1), those that say how long a body is, and those that belong to gpucoord's own host and
# login.


OF_CONNECTION = frozenset(
    {b"connection", b"keep-alive", b"te", b"trailer", b"transfer-encoding", b"upgrade"}
)
# Tokens and cookies of gpucoord; what it answers itself; the browser's rules, which are for this
# host. The instance must not encode the answer, as its tokens are counted.
NOT_SENT = OF_CONNECTION | {
    b"host", b"content-length", b"expect", b"authorization", b"x-api-key", b"api-key", b"cookie",
    b"prefer", b"x-gpucoord-priority", b"accept-encoding", b"origin", b"referer", b"forwarded",
    b"via", b"x-real-ip", b"if-none-match", b"if-modified-since", b"range",
}  # fmt: skip
# A cookie or a policy of a model's server would apply to the page of gpucoord, too.
NOT_RETURNED = OF_CONNECTION | {
    b"content-length", b"content-type", b"date", b"server", b"location", b"set-cookie",
    b"www-authenticate", b"strict-transport-security", b"public-key-pins", b"alt-svc",
    b"clear-site-data", b"cache-control", b"expires", b"pragma", b"refresh", b"x-sendfile",
    b"x-content-type-options", b"service-worker-allowed",
}  # fmt: skip
# Proxies before the endpoint obey X-Accel-*.
PREFIXES = (b"proxy-", b"x-forwarded-", b"access-control-", b"sec-", b"x-accel-")


def sent(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """Headers of a client's request that an instance gets. Names are in lower case."""
    return _passed(headers, NOT_SENT)


def returned(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """Headers of an instance's answer that the client gets. Names are in lower case."""
    return _passed(headers, NOT_RETURNED)


def _passed(headers: Iterable[tuple[bytes, bytes]], removed: frozenset[bytes]) -> Headers:
    """Without those that `Connection` names: they are of one connection, too."""
    pairs = tuple(headers)
    for name, value in pairs:
        if name == b"connection":
            removed |= {token.strip().lower() for token in value.split(b",")}
    return tuple(
        (name, value)
        for name, value in pairs
        if name not in removed and not name.startswith(PREFIXES)
    )


# How many bytes of bodies the endpoint parses for one user.
#
# Parsing JSON holds up all streams of the endpoint, up to 0.02 s for each MiB. A user has AT_ONCE
# bytes, and then BYTES_PER_S.

BYTES_PER_S, AT_ONCE = 8.0 * 1024**2, 64.0 * 1024**2


class BodyRate:
    """Times are seconds of one clock, which the caller reads."""

    def __init__(self) -> None:
        # When the bodies of a user so far would all have been parsed at BYTES_PER_S.
        self._due: dict[int, float] = {}

    def delay(self, user: int, size: int, now: float) -> float:
        """Count a body; the seconds until it may be parsed, which are 0 if it may."""
        due = max(self._due.get(user, now), now) + size / BYTES_PER_S
        delay = due - now - AT_ONCE / BYTES_PER_S
        if delay > 1e-6:
            return delay
        self._due[user] = due
        return 0.0


# Which web pages of other origins may read answers (Fetch standard, CORS protocol).
#
# A request needs a token in a header, which no browser sends by itself. Therefore no cookies are
# involved, and `*` may stand for all origins.

ANY = "*"
KEPT_FOR_S = 600
_NAMES = re.compile(rb"[A-Za-z0-9\-_, ]{1,2000}")


def headers(origin: bytes, allowed: Collection[str]) -> Headers:
    """Headers of an answer to a page of this origin."""
    if not allowed:
        return ()
    vary = (b"vary", b"Origin")
    if not origin or not (ANY in allowed or origin.decode("latin-1") in allowed):
        return (vary,)
    return (
        vary,
        (b"access-control-allow-origin", origin),
        (b"access-control-expose-headers", b"*"),
    )


def preflight(request_headers: Iterable[tuple[bytes, bytes]], allowed: Collection[str]) -> Headers:
    """Headers that say what a browser may send; () = nothing, or it is no such request."""
    names = dict(request_headers)
    if b"access-control-request-method" not in names:
        return ()
    if len(headers(names.get(b"origin", b""), allowed)) < 2:
        return ()
    wanted = names.get(b"access-control-request-headers", b"")
    return (
        (b"access-control-allow-methods", b"GET, HEAD, POST"),
        # `*` would not include Authorization.
        *([(b"access-control-allow-headers", wanted)] if _NAMES.fullmatch(wanted) else []),
        (b"access-control-max-age", b"%d" % KEPT_FOR_S),
    )


# Small fields of a form (multipart/form-data, RFC 7578) whose files pass by.
#
# Only the values of the wanted fields are kept, so the memory is bounded, however large a file
# is.


LONGEST_BOUNDARY = 200
LONGEST_HEAD, LONGEST_VALUE, MOST_FIELDS, MOST_BLANKS = 8 * 1024, 1024, 1000, 100
_NAME = re.compile(rb';\s*name\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s;"]+))', re.IGNORECASE)
_BOUNDARY = re.compile(r';\s*boundary=(?:"([^"]+)"|([^\s;"]+))', re.IGNORECASE)
_FILE = re.compile(rb";\s*filename\*?\s*=", re.IGNORECASE)
_BAD = "The body is no valid form (multipart/form-data)."


class InvalidForm(ValueError):
    """The text says what is wrong."""


class Field(Struct, frozen=True):
    """A value and its place in the body."""

    value: bytes
    start: int

    @property
    def end(self) -> int:
        return self.start + len(self.value)


class _At(Enum):
    BODY = 1
    DELIMITER = 2
    HEAD = 3
    END = 4


def boundary_of(content_type: str) -> bytes:
    """Raises InvalidForm."""
    match = _BOUNDARY.search(content_type)
    boundary = "" if match is None else match[1] or match[2]
    if not 0 < len(boundary) <= LONGEST_BOUNDARY:
        raise InvalidForm("The Content-Type of the form lacks its boundary.")
    return boundary.encode("latin-1", "replace")


class FormReader:
    """`feed` all pieces, then `fields` has the wanted ones. Raises InvalidForm."""

    def __init__(self, boundary: bytes, wanted: Collection[str]) -> None:
        self._delimiter = b"\r\n--" + boundary
        self._wanted = {name.encode() for name in wanted}
        # As if a line had ended before the first delimiter.
        self._rest, self._at, self._offset = b"\r\n", _At.BODY, -2
        self._parts = 0
        self._name: bytes | None = None
        self._value, self._start = b"", 0
        self.fields: dict[str, Field] = {}

    @property
    def is_complete(self) -> bool:
        return self._at is _At.END

    def feed(self, piece: bytes) -> None:
        self._rest += piece
        while self._at is not _At.END and self._step():
            pass
        if self._at is _At.END:
            self._drop(len(self._rest))

    def _step(self) -> bool:
        """Whether the next step has what it needs."""
        if self._at is _At.BODY:
            return self._body()
        return self._after_delimiter() if self._at is _At.DELIMITER else self._head()

    def _body(self) -> bool:
        at = self._rest.find(self._delimiter)
        is_found = at >= 0
        size = at if is_found else max(0, len(self._rest) - len(self._delimiter) + 1)
        if self._name is not None:
            self._value += self._rest[:size]
            if len(self._value) > LONGEST_VALUE:
                raise InvalidForm(f"The field {self._name.decode()} is too long.")
        self._drop(size)
        if is_found:
            self._keep()
            self._drop(len(self._delimiter))
            self._at = _At.DELIMITER
        return is_found

    def _keep(self) -> None:
        if self._name is None:
            return
        name = self._name.decode()
        if name in self.fields:
            raise InvalidForm(f"The form has the field {name} twice.")
        self.fields[name] = Field(self._value, self._start)
        self._name, self._value = None, b""

    def _after_delimiter(self) -> bool:
        """The line ends, after blanks; or the form does, with two hyphens."""
        line = self._rest.lstrip(b" \t")
        if len(self._rest) - len(line) > MOST_BLANKS:
            raise InvalidForm(_BAD)
        if len(line) < 2:
            return False
        if self._rest.startswith(b"--"):
            self._at = _At.END
        elif line.startswith(b"\r\n"):
            self._parts += 1
            if self._parts > MOST_FIELDS:
                raise InvalidForm(f"The form has more than {MOST_FIELDS} fields.")
            # The line's end stays, as the head may be empty.
            self._drop(len(self._rest) - len(line))
            self._at = _At.HEAD
        else:
            raise InvalidForm(_BAD)
        return True

    def _head(self) -> bool:
        at = self._rest.find(b"\r\n\r\n")
        if at > LONGEST_HEAD or (at < 0 and len(self._rest) > LONGEST_HEAD):
            raise InvalidForm("The head of a field of the form is too long.")
        if at < 0:
            return False
        name = _name(self._rest[:at])
        self._drop(at + 4)
        self._name = name if name in self._wanted else None
        self._value, self._start = b"", self._offset
        self._at = _At.BODY
        return True

    def _drop(self, size: int) -> None:
        self._rest = self._rest[size:]
        self._offset += size


def _name(head: bytes) -> bytes | None:
    """The name of a field that is no file."""
    for line in head.split(b"\r\n"):
        header, _, value = line.partition(b":")
        if header.strip().lower() == b"content-disposition" and not _FILE.search(value):
            match = _NAME.search(value)
            return None if match is None else match[1] if match[1] is not None else match[2]
    return None


# The paths whose requests name a model. FORMS may be forms with files; WHOLE are never streamed.
FORMS = frozenset(
    {
        "audio/transcriptions", "audio/translations", "images/edits", "images/variations",
    }
)  # fmt: skip
WHOLE = frozenset({"embeddings", "rerank", "score", "moderations", "messages/count_tokens"})
PATHS = (
    "chat/completions", "completions", "responses", "messages", "messages/count_tokens",
    "embeddings", "rerank", "score", "moderations", "audio/transcriptions", "audio/translations",
    "audio/speech", "images/generations", "images/edits", "images/variations",
)  # fmt: skip
# Streams of these have events with names.
NAMED_EVENTS = frozenset({"responses", "messages"})
PRIORITY_HEADER = "x-gpucoord-priority"
LONGEST_MODEL = 100
# Objects and lists of a request: more take seconds to parse, while no other request is served.
MOST_PARTS = 500_000
_PROMPT_TOKENS = re.compile(rb'"(?:prompt|input)_tokens"\s*:\s*(\d{1,12})')
_ANSWER_TOKENS = re.compile(rb'"(?:completion|output)_tokens"\s*:\s*(\d{1,12})')
# Where servers put the usage: at the end, or before the data of embeddings.
HEAD, TAIL = 4096, 16_384
# A longer event is no event of a chat; longer answers are cut.
LONGEST_EVENT, LONGEST_ANSWER = 1024**2, 4 * 1024**2
# A token of English text has about this many bytes.
BYTES_PER_TOKEN = 4
# By status: how Anthropic's clients name the kinds of errors.
_KINDS = {
    400: "invalid_request_error", 401: "authentication_error", 403: "permission_error",
    404: "not_found_error", 413: "request_too_large", 429: "rate_limit_error",
    503: "overloaded_error",
}  # fmt: skip


def parse(path: str, body: bytes, priority: str = "") -> ModelRequest:
    """Raises Refused with a sentence."""
    value = _object(body)
    streams = value.get("stream", False)
    if streams is not None and not isinstance(streams, bool):
        raise Refused(400, "`stream` must be true or false.", param="stream")
    if path in WHOLE and streams:
        raise Refused(400, f"Answers of {path} are not streamed.", param="stream")
    return ModelRequest(
        path=path,
        model=_model(value.get("model")),
        body=body,
        streams=bool(streams),
        priority=_priority(priority),
    )


def form(path: str, upload: Upload, model: str, stream: str, priority: str = "") -> ModelRequest:
    """The request of a form with files. Raises Refused with a sentence."""
    return ModelRequest(
        path=path,
        model=_model(model),
        body=upload,
        streams=stream.strip().lower() in ("true", "1"),
        priority=_priority(priority),
    )


def _object(body: bytes) -> dict[str, Any]:
    """Raises Refused."""
    if body.count(b"{") + body.count(b"[") > MOST_PARTS:
        raise Refused(400, f"The body has more than {MOST_PARTS} objects and lists.")
    try:
        value = input_rules.parse_json(body)
    except ValueError:
        raise Refused(400, "The body is no JSON.") from None
    if not isinstance(value, dict):
        raise Refused(400, "The body must be a JSON object.")
    return value


def _model(name: object) -> str:
    if not isinstance(name, str) or not name:
        raise Refused(400, "Name the model: field `model`.", param="model")
    return name[:LONGEST_MODEL]


def renamed(body: bytes, model: str) -> bytes:
    """The body of a request with another name of its model; all other fields keep their values."""
    return json.dumps({**input_rules.parse_json(body), "model": model}).encode()


def _priority(text: str) -> int:
    if not text:
        return DEFAULT_PRIORITY
    if text.strip() not in {str(number) for number in PRIORITIES}:
        least, most = min(PRIORITIES), max(PRIORITIES)
        raise Refused(400, f"{PRIORITY_HEADER} must be a number from {least} to {most}.")
    return int(text)


def unknown_model(model: str, names: Iterable[str]) -> Refused:
    known = ", ".join(sorted(names)) or "none yet"
    text = f"There is no model {model!r}. Models: {known}."
    return Refused(404, text, code="model_not_found", param="model")


def error_body(refused: Refused, path: str = "") -> bytes:
    """The error as the clients of the path read it."""
    about = {
        "message": refused.message,
        "type": refused.type,
        "param": refused.param,
        "code": refused.code,
    }
    if path.startswith("messages"):
        about["type"] = _KINDS.get(refused.status, "api_error")
        return json.dumps({"type": "error", "error": about}).encode()
    return json.dumps({"error": about}).encode()


def error_event(refused: Refused, path: str = "") -> bytes:
    """The same inside a stream that has begun."""
    if path not in NAMED_EVENTS:
        return b"data: " + error_body(refused) + b"\n\n"
    error = input_rules.parse_json(error_body(refused, path))["error"]
    fields = {name: error[name] for name in ("message", "param", "code")}
    data = json.dumps({"type": "error", "error": error, **fields, "sequence_number": 0})
    return f"event: error\ndata: {data}\n\n".encode()


def comment(text: str) -> bytes:
    """A line of a stream that clients skip."""
    return f": {' '.join(text.split())}\n\n".encode()


def model_list(rows: Iterable[tuple[str, float]]) -> dict[str, Any]:
    """Names of models and when they were made, in seconds of Unix time."""
    return {"object": "list", "data": [model_entry(name, made) for name, made in rows]}


def model_entry(name: str, made: float) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": int(made), "owned_by": "gpucoord"}


class TokenCounter(Struct):
    """Counts the tokens of an answer that passes by: as the server reports, else by its events."""

    request_bytes: int = 0
    events: int = 0
    _head: bytes = b""
    _tail: bytes = b""
    size: int = field(default=0)

    def feed(self, chunk: bytes) -> None:
        if len(self._head) < HEAD:
            self._head += chunk[: HEAD - len(self._head)]
        self._tail = (self._tail + chunk)[-TAIL:] if len(chunk) < TAIL else chunk[-TAIL:]
        self.events += chunk.count(b"data:")
        self.size += len(chunk)

    def reported(self) -> tuple[int, int] | None:
        """Tokens of the prompt and of the answer; None: the server did not say."""
        of_prompt, of_answer = self._last(_PROMPT_TOKENS), self._last(_ANSWER_TOKENS)
        if of_prompt is None and of_answer is None:
            return None
        return of_prompt or 0, of_answer or 0

    def tokens(self) -> tuple[int, int]:
        """As reported, else an estimate: an event is a token, and so are four bytes of a prompt."""
        return self.reported() or (self.request_bytes // BYTES_PER_TOKEN, max(0, self.events - 1))

    def _last(self, pattern: re.Pattern[bytes]) -> int | None:
        counts = pattern.findall(self._tail) or pattern.findall(self._head)
        return int(counts[-1]) if counts else None


class EventReader:
    """The text of an answer from the events of a stream of chat completions.

    Its memory is bounded by LONGEST_EVENT and LONGEST_ANSWER, whatever the server sends.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._size = 0
        self.text: list[str] = []
        self.error = ""
        self.is_done = False

    def feed(self, chunk: bytes) -> None:
        lines = (self._rest + chunk).split(b"\n")
        self._rest = lines.pop()
        if len(self._rest) > LONGEST_EVENT:
            self._rest, self.error = b"", "The model's server sent an event that is too long."
        for line in lines:
            if line.startswith(b"data:"):
                self._event(line[5:].strip())

    def _event(self, data: bytes) -> None:
        if data == b"[DONE]":
            self.is_done = True
            return
        try:
            event = input_rules.parse_json(data)
            if "error" in event:
                self.error = error_text(data)
            for choice in event.get("choices") or ():
                piece = (choice.get("delta") or {}).get("content")
                if isinstance(piece, str) and self._size < LONGEST_ANSWER:
                    self._size += len(piece)
                    self.text.append(piece)
                if choice.get("finish_reason"):
                    self.is_done = True
        except (ValueError, AttributeError, TypeError):
            self.error = "The model's server sent an event that is no JSON object."


def redirect_text(status: int, location: str) -> str:
    """location: as the server gives it, "" = it does not."""
    to = re.sub(r"^[a-z]+://[^/]*", "", location)[:200]
    where = f" to {to}" if to else ""
    return (
        f"The model's server redirects this request{where} ({status}). gpucoord follows no"
        " redirects. An operator must correct api_base_path, or the command of the model."
    )


def error_text(body: bytes) -> str:
    """Text of an error answer of a model's server, in at most 500 characters."""
    try:
        error = input_rules.parse_json(body)["error"]
        text = error["message"] if isinstance(error, dict) else error
    except (ValueError, KeyError, TypeError):
        text = body.decode("utf-8", "replace")
    return str(text).strip()[:500] or "no reason"


TYPE = "text/event-stream"
# A longer event is passed on in parts; no error can follow a part of an event.
LONGEST_HELD = 64 * 1024
# The end of a line, and an empty line. Lines end with CRLF, LF or CR.
_ENDS = (b"\n\n", b"\n\r\n", b"\r\r", b"\n\r")
_BOM = b"\xef\xbb\xbf"


def is_stream(content_type: str) -> bool:
    return content_type.partition(";")[0].strip().lower() == TYPE


class WholeEvents:
    """Passes a stream on in whole events, so that a comment or an error may follow each part.

    A client would read an error after half an event as a part of that event.
    """

    def __init__(self) -> None:
        self._rest = b""
        # Whether the bytes that were passed on end with a whole event.
        self.is_whole = True

    def feed(self, piece: bytes) -> bytes:
        """The bytes to pass on now."""
        if not self._rest and piece.endswith((b"\n\n", b"\n\r\n")):
            self.is_whole = True
            return piece
        # An end may have begun in the part that is held back.
        seen = max(0, len(self._rest) - 3)
        data = self._rest + piece
        cut = max(_after_last(data, end, seen) for end in _ENDS)
        if cut:
            self.is_whole = True
        elif not self.is_whole or len(data) > LONGEST_HELD:
            self.is_whole, cut = False, len(data)
        self._rest = data[cut:]
        if cut and self._rest and len(self._rest) > LONGEST_HELD:
            self.is_whole, self._rest = False, b""
            return data
        return data[:cut]

    def end(self) -> bytes:
        """The stream has ended in order: the rest of it."""
        rest, self._rest = self._rest, b""
        return rest


def _after_last(data: bytes, end: bytes, start: int) -> int:
    """The position after the last one; 0: there is none."""
    at = data.rfind(end, start)
    return 0 if at < 0 else at + len(end)


def without_bom(piece: bytes) -> bytes:
    """A byte order mark is one only at the beginning of a stream."""
    return piece.removeprefix(_BOM)


INTERVAL_S, LOOKUPS = 0.1, 100
# A token that is made valid, such as that of a user who is active again, works after this time.
REFUSED_FOR_S = 1.0
MOST_ADDRESSES = MOST_REFUSED = 1000
# Addresses beyond MOST_ADDRESSES share one limit.
OTHERS = ""


class UnknownTokens:
    """Times are seconds of one clock, which the caller reads."""

    def __init__(self) -> None:
        # When the look-ups of an address so far would all have been made one each INTERVAL_S.
        self._due: dict[str, float] = {}
        self._refused: dict[bytes, float] = {}

    def is_refused(self, token: str, now: float) -> bool:
        """Whether the same token was refused within REFUSED_FOR_S."""
        return now < self._refused.get(_digest(token), 0.0)

    def delay(self, address: str, now: float) -> float:
        """Count a look-up; the seconds until it may be made, which are 0 if it may."""
        key = self._key(address, now)
        due = max(self._due.get(key, now), now)
        delay = due + INTERVAL_S - (now + LOOKUPS * INTERVAL_S)
        if delay > 1e-6:
            return delay
        self._due[key] = due + INTERVAL_S
        return 0.0

    def add(self, token: str, now: float) -> None:
        """The token is invalid."""
        if len(self._refused) >= MOST_REFUSED:
            self._refused = {key: until for key, until in self._refused.items() if until > now}
        if len(self._refused) < MOST_REFUSED:
            self._refused[_digest(token)] = now + REFUSED_FOR_S

    def give_back(self, address: str) -> None:
        """The token was valid, so its look-up does not count."""
        key = address if address in self._due else OTHERS
        if key in self._due:
            self._due[key] -= INTERVAL_S

    def _key(self, address: str, now: float) -> str:
        if address in self._due or len(self._due) < MOST_ADDRESSES:
            return address
        self._due = {key: due for key, due in self._due.items() if due > now}
        return address if len(self._due) < MOST_ADDRESSES else OTHERS


def _digest(token: str) -> bytes:
    return sha256(token.encode("utf-8", "replace")).digest()
