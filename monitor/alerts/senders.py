"""Edge: sends messages through apprise, which only this module imports, on first use.

An address holds secrets. What apprise says about a failure is given back without any part of it.
Loopback, link-local and metadata addresses need a setting. Each connection of a sending thread is
checked after the name was resolved, so neither a DNS name nor a redirect leads around the check.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from time import monotonic
from typing import Any, TypeVar
from urllib.parse import unquote

# Instance metadata of clouds that is not link-local: Alibaba, Azure, Oracle, AWS over IPv6.
METADATA = ("100.100.100.200/32", "168.63.129.16/32", "192.0.0.192/32", "fd00:ec2::/32")
CONNECTING = ("socket.connect", "socket.sendto", "socket.sendmsg")
# Part of the error text by which a library's log line is recognised.
REFUSED = "messages may not be sent to this address"


@dataclass(frozen=True, slots=True)
class NetworkLimits:
    """`networks`: local ones that messages may reach. `redirects`: whether they are followed."""

    networks: tuple[str, ...] = ()
    redirects: bool = False

    def allows(self, address: str) -> bool:
        """Whether a connection to this IP address may be made."""
        try:
            plain = _plain(ip_address(address.partition("%")[0]))
        except ValueError:
            return False
        if any(plain in ip_network(name, strict=False) for name in self.networks):
            return True
        return not (_is_local(plain) or any(plain in ip_network(name) for name in METADATA))


class NotReachable(OSError):
    """A connection that the settings do not allow."""


class Connections:
    """The connections of a thread, so that another thread can end them.

    An address sets the timeouts of its service, and a server may send a byte now and then.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._is_over = False

    def add(self, opened: Any) -> None:
        """Note a socket before it connects. Raises NotReachable after `end`."""
        with self._lock:
            if self._is_over:
                raise NotReachable("timed out")
            # A descriptor of our own: TLS takes the socket apart, and the service closes it.
            self._sockets.append(socket.socket(fileno=os.dup(opened.fileno())))

    def end(self) -> None:
        """Close all, also for a thread that waits for an answer."""
        with self._lock:
            self._is_over = True
            while self._sockets:
                with self._sockets.pop() as opened, suppress(OSError):
                    opened.shutdown(socket.SHUT_RDWR)


_thread = threading.local()
_installing = threading.Lock()
_installed = False


@contextmanager
def limited_to(reach: NetworkLimits, connections: Connections | None = None) -> Iterator[None]:
    """Limit the connections of this thread while the block runs; at its end they are closed."""
    _install()
    own = Connections() if connections is None else connections
    _thread.reach, _thread.connections = reach, own
    try:
        yield
    finally:
        _thread.reach = None
        own.end()


def _install() -> None:
    """An audit hook sees the connections of every library; it stays for the process's life."""
    global _installed
    with _installing:
        if not _installed:
            _limit_redirects()
            sys.addaudithook(_check)
            _installed = True


def _limit_redirects() -> None:
    from requests import Session

    target = Session.get_redirect_target

    def get_redirect_target(session: Session, response: Any) -> str | None:
        reach = getattr(_thread, "reach", None)
        if reach is not None and not reach.redirects:
            return None
        location: str | None = target(session, response)
        return location

    Session.get_redirect_target = get_redirect_target  # type: ignore[method-assign,assignment]


def _check(event: str, args: tuple[Any, ...]) -> None:
    if event not in CONNECTING:
        return
    reach = getattr(_thread, "reach", None)
    if reach is not None and not all(reach.allows(address) for address in _resolved(args[1])):
        raise NotReachable(REFUSED)
    if reach is not None and event == "socket.connect":
        _thread.connections.add(args[0])


def _resolved(address: Any) -> list[str]:
    """The IP addresses that a connection would go to. Unix sockets have none that is allowed."""
    if not isinstance(address, tuple):
        return [""]
    host = str(address[0])
    try:
        ip_address(host.partition("%")[0])
    except ValueError:
        return [str(candidate[4][0]) for candidate in socket.getaddrinfo(host, None)]
    return [host]


def _plain(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """The IPv4 address that an IPv6 address stands for, if it does."""
    if isinstance(address, IPv6Address):
        return address.ipv4_mapped or address.sixtofour or address
    return address


def _is_local(address: IPv4Address | IPv6Address) -> bool:
    return (
        address.is_loopback
        or address.is_link_local
        or address.is_unspecified
        or address.is_multicast
        or address.is_reserved
    )


K = TypeVar("K")
# Marks that notify users or channels in a chat. A word joiner after them makes them plain text.
CALLS = re.compile(r"@(?=everyone|here|channel|all)|<(?=[!@#])")
TYPES = {"info": "info", "warning": "warning", "error": "failure"}
UNUSABLE = "The address is not one that can be used."
MASK = "***"
# Wording of the error messages of libraries, whose own texts contain addresses.
REASONS = {
    REFUSED: "its address is local to this host; the setting alerts_allow may allow it",
    "resol": "its host has no address (DNS)",
    "name or service not known": "its host has no address (DNS)",
    "timed out": "it did not answer in time",
    "refused": "nothing listens there",
    "certificate": "its certificate is not trusted",
    "authentication": "it did not accept user and password",
}
REDIRECTED = re.compile(r"error=30[12378]\b")
NO_REDIRECTS = "it redirects; the setting alerts_follow_redirects may allow that"
_apprise_log = logging.getLogger("apprise")
# This logger logs addresses: its lines are only captured, never passed on.
_apprise_log.propagate = False
_apprise_log.setLevel(logging.DEBUG)
_apprise_log.addHandler(logging.NullHandler())


@dataclass(frozen=True, slots=True)
class Attachment:
    """A file that is sent with a message, by services that take files."""

    name: str
    media_type: str
    content: bytes


@dataclass(frozen=True, slots=True)
class OutgoingMessage:
    """A message with its address.

    `receiver`: a mail address that replaces the one in the address.
    """

    address: str
    title: str
    text: str
    severity: str = "info"
    receiver: str = ""
    attachment: Attachment | None = None


@dataclass(frozen=True, slots=True)
class Service:
    """The service of an address: its name, and whether receivers can be chosen."""

    name: str
    is_mail: bool


def service_of(address: str) -> Service | None:
    """None: unknown service, an incomplete address, or one that names a file of this server."""
    target = _target(address)
    if target is None:
        return None
    return Service(str(target.service_name), _is_mail(address))


def _is_mail(address: str) -> bool:
    return address.lower().startswith("mailto")


def send_all(
    letters: Mapping[K, OutgoingMessage], limit_s: float, reach: NetworkLimits
) -> dict[K, str | None]:
    """Send all at once; the problem of each, None = delivered.

    Returns within the limit: a message without an answer by then counts as not delivered, and its
    connections are closed, so that its thread ends.
    """
    answers: dict[K, str | None] = {}
    connections = {key: Connections() for key in letters}

    def send_one(key: K, letter: OutgoingMessage, target: Any) -> None:
        with limited_to(reach, connections[key]):
            answers[key] = _send(letter, target)

    # Created here, because loading the services is not thread-safe.
    prepared = [(key, letter, _target(letter.address)) for key, letter in letters.items()]
    threads = [threading.Thread(target=send_one, args=args, daemon=True) for args in prepared]
    deadline = monotonic() + limit_s
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - monotonic()))
    # A thread whose connections are closed now would answer that, which is not the cause.
    results = dict(answers)
    for opened in connections.values():
        opened.end()
    late = f"No answer within {limit_s:g} s."
    return {key: results.get(key, late) for key in letters}


def _send(letter: OutgoingMessage, target: Any) -> str | None:
    if target is None:
        return UNUSABLE
    if letter.receiver:
        target.targets = [(False, letter.receiver)]
    kind = TYPES.get(letter.severity, "info")
    try:
        with _LogCapture() as heard:
            files = _files(letter)
            sent = _notify(target, letter, kind, files)
    except Exception as error:
        return _redacted(letter.address, f"{type(error).__name__}: {error}")
    if sent:
        return None
    reason = NO_REDIRECTS if REDIRECTED.search(heard.said) else heard.reason
    why = f" ({reason})" if reason else ""
    return _redacted(letter.address, heard.said or "It was not accepted.") + why


def _notify(target: Any, letter: OutgoingMessage, kind: str, files: Any) -> bool:
    """Names in the texts are chosen by users, so they are neither HTML nor a call to a channel."""
    from apprise import NotifyFormat

    title, body = letter.title, letter.text
    if not _is_mail(letter.address):
        title, body = (CALLS.sub("\\g<0>\u2060", text) for text in (title, body))
    sent: bool = target.notify(
        title=title, body=body, notify_type=kind, attach=files, body_format=NotifyFormat.TEXT
    )
    return sent


def _files(letter: OutgoingMessage) -> Any:
    """None without an attachment. Services that take no files leave it out."""
    file = letter.attachment
    if file is None:
        return None
    from apprise import AppriseAttachment
    from apprise.attachment.memory import AttachMemory

    loader: Any = AttachMemory
    memory = loader(content=file.content, name=file.name, mimetype=file.media_type)
    return AppriseAttachment(memory)


def _target(address: str) -> Any:
    """None: the address cannot be used.

    Arguments such as `template` name a file, which this account would read and send.
    """
    import apprise

    target = apprise.Apprise.instantiate(address, suppress_exceptions=True)
    if target is None:
        return None
    files = [part for part in vars(target).values() if isinstance(part, apprise.AppriseAttachment)]
    return None if any(map(len, files)) else target


class _LogCapture(logging.Handler):
    """Captures what apprise logs in this thread while it sends: the last warning and its reason."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.said = ""
        self.reason = ""
        self._thread = threading.get_ident()

    def __enter__(self) -> _LogCapture:
        _apprise_log.addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        _apprise_log.removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        if record.thread != self._thread:
            return
        text = record.getMessage()
        if record.levelno >= logging.WARNING:
            self.said = text
        elif record.levelno == logging.DEBUG and "exception" in text.lower():
            reasons = (words for sign, words in REASONS.items() if sign in text.lower())
            self.reason = next(reasons, self.reason)


def _redacted(address: str, said: str) -> str:
    """The text without any part of the address."""
    rest = address.partition("://")[2]
    written = set(re.split(r"[/:@?&=#,]", rest))
    for part in sorted(written | {unquote(part) for part in written}, key=len, reverse=True):
        if len(part) >= 3:
            said = re.sub(re.escape(part), MASK, said, flags=re.IGNORECASE)
    return " ".join(said.split())[:300]
