"""Edge: sends messages through apprise, which only this module imports, on first use.

An address holds secrets. What apprise says about a failure is given back without any part of it.
Loopback, link-local and metadata addresses need a setting, and services of users never reach them.
`problem_of` checks an address when it is stored, and `send_all` checks the same. Each connection of
a sending thread is checked by its IP address, so no name and no redirect leads around the check.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from time import monotonic
from typing import Any, TypeVar
from urllib.parse import parse_qsl, unquote

from msgspec import Struct

# Local to a host or a site, beside what IP addresses say of themselves: this network, deprecated
# site-local addresses, local NAT64, and instance metadata of clouds that is not link-local
# (Alibaba, Azure, Oracle, AWS over IPv6).
LOCAL_NETWORKS = tuple(
    map(
        ip_network,
        (
            "0.0.0.0/8",
            "fec0::/10",
            "64:ff9b:1::/48",
            "100.100.100.200/32",
            "168.63.129.16/32",
            "192.0.0.192/32",
            "fd00:ec2::/32",
        ),
    )
)
# IPv6 addresses that stand for the IPv4 address in their last 32 bits.
NAT64 = ip_network("64:ff9b::/96")
LOCAL_NAMES = frozenset({"localhost", "localdomain", "ip6-localhost", "ip6-loopback"})
CONNECTING = ("socket.connect", "socket.sendto", "socket.sendmsg")
# Part of the error text by which a library's log line is recognised.
REFUSED = "messages may not be sent to this address"
# A name would be looked up again after the check, perhaps as another address.
UNRESOLVED = "the service looks up names itself"


class NetworkLimits(Struct, frozen=True):
    """`networks`: local ones that messages may reach. `redirects`: whether they are followed."""

    networks: tuple[str, ...] = ()
    redirects: bool = False

    def allows(self, address: str) -> bool:
        """Whether a connection to this IP address may be made; False for a name."""
        meant = ip_of(address)
        return meant is not None and all(map(self._allows, _forms(meant)))

    def may_name(self, host: str) -> bool:
        """Whether an address may have this host. Other names are checked when they are resolved."""
        if host.lower().rstrip(".").rpartition(".")[2] in LOCAL_NAMES:
            return self.allows("127.0.0.1")
        return ip_of(host) is None or self.allows(host)

    def of_users(self) -> NetworkLimits:
        """The settings are for channels of operators: services of users get none of them."""
        return NetworkLimits()

    def _allows(self, address: IPv4Address | IPv6Address) -> bool:
        if any(address in ip_network(name, strict=False) for name in self.networks):
            return True
        return not (_is_local(address) or any(address in network for network in LOCAL_NETWORKS))


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
    if reach is not None and not reach.allows(host := _host_in(args[1])):
        raise NotReachable(REFUSED if ip_of(host) or not host else UNRESOLVED)
    if reach is not None and event == "socket.connect":
        _thread.connections.add(args[0])


def _host_in(address: Any) -> str:
    """The host of a connection, "" = none, as of a Unix socket."""
    return str(address[0]) if isinstance(address, tuple) else ""


def ip_of(host: str) -> IPv4Address | IPv6Address | None:
    """The IP address that a host is in any spelling, such as 0x7f.1 and [::1%lo]; None = a name."""
    bare = host.strip().removeprefix("[").removesuffix("]").partition("%")[0].rstrip(".")
    try:
        return ip_address(bare)
    except ValueError:
        pass
    try:
        # As the C library reads it: decimal, octal and hexadecimal numbers, one to four of them.
        return IPv4Address(socket.inet_aton(bare)) if bare.isascii() and bare.split() else None
    except OSError:
        return None


def _forms(address: IPv4Address | IPv6Address) -> Iterator[IPv4Address | IPv6Address]:
    """The addresses that a connection to this one may reach: IPv6 can stand for IPv4."""
    if isinstance(address, IPv4Address):
        yield address
        return
    if address.ipv4_mapped or address in NAT64:
        yield IPv4Address(int(address) & 0xFFFF_FFFF)
        return
    yield address
    yield from filter(None, (address.sixtofour, *(address.teredo or ())))


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
LOCAL_HOST = (
    "The host of the address is local to this server: operators can allow it for their own channels"
    " by the setting alerts_allow."
)
# Parameters that name a file, which this account would read and send.
FILES = frozenset({"template", "keyfile", "subfile", "pgpkey"})
MASK = "***"
# Wording of the error messages of libraries, whose own texts contain addresses.
REASONS = {
    REFUSED: "its address is local to this host; the setting alerts_allow may allow it",
    UNRESOLVED: "its service needs an IP address in the place of the name of the host",
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


class Attachment(Struct, frozen=True):
    """A file that is sent with a message, by services that take files."""

    name: str
    media_type: str
    content: bytes


class Enclosure(Struct, frozen=True):
    """Sent with a message: a file, and for mails the message as HTML.

    `pictures`: shown by the HTML as `cid:NAME`.
    """

    file: Attachment | None = None
    html: str = ""
    pictures: tuple[Attachment, ...] = ()


NOTHING = Enclosure()


class OutgoingMessage(Struct, frozen=True):
    """A message with its address.

    `receiver`: a mail address that replaces the one in the address. `is_of_user`: a user has
    written the address, not an operator.
    """

    address: str
    title: str
    text: str
    severity: str = "info"
    receiver: str = ""
    enclosure: Enclosure = NOTHING
    is_of_user: bool = False


class Service(Struct, frozen=True):
    """The service of an address: its name, and whether receivers can be chosen."""

    name: str
    is_mail: bool


def service_of(address: str) -> Service | None:
    """None: unknown service, an incomplete address, or one that names a file of this server."""
    target = _target(address)
    if target is None:
        return None
    return Service(str(target.service_name), _is_mail(address))


def problem_of(address: str, limits: NetworkLimits) -> str:
    """Why messages cannot be sent to this address; "" = they can, as far as its text says."""
    target = _target(address)
    if target is None:
        return UNUSABLE
    return "" if _names_allowed(target, limits) else LOCAL_HOST


def _names_allowed(target: Any, limits: NetworkLimits) -> bool:
    """Services whose address has a token in the place of the host are reached by their own name."""
    has_host = any("{host}" in template for template in target.templates)
    hosts = [target.host if has_host else "", getattr(target, "smtp_host", "")]
    return all(limits.may_name(str(host)) for host in hosts if host)


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
        limits = reach.of_users() if letter.is_of_user else reach
        with limited_to(limits, connections[key]):
            answers[key] = _send(letter, target, limits)

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


def _send(letter: OutgoingMessage, target: Any, limits: NetworkLimits) -> str | None:
    if target is None:
        return UNUSABLE
    if not _names_allowed(target, limits):
        return LOCAL_HOST
    if letter.receiver:
        target.targets = [(False, letter.receiver)]
    kind = TYPES.get(letter.severity, "info")
    try:
        with _LogCapture() as heard:
            sent = _notify(target, letter, kind)
    except Exception as error:
        return _redacted(letter.address, f"{type(error).__name__}: {error}")
    if sent:
        return None
    reason = NO_REDIRECTS if REDIRECTED.search(heard.said) else heard.reason
    why = f" ({reason})" if reason else ""
    return _redacted(letter.address, heard.said or "It was not accepted.") + why


def _notify(target: Any, letter: OutgoingMessage, kind: str) -> bool:
    """Names in the texts are chosen by users, so they are neither HTML nor a call to a channel.

    The HTML of an enclosure is written by a template, which has escaped them.
    """
    from apprise import NotifyFormat

    title, body, format, enclosed = letter.title, letter.text, NotifyFormat.TEXT, letter.enclosure
    files = [enclosed.file] if enclosed.file else []
    if not _is_mail(letter.address):
        title, body = (CALLS.sub("\\g<0>\u2060", text) for text in (title, body))
    elif enclosed.html and target.resolve_format(NotifyFormat.HTML) == NotifyFormat.HTML:
        body, format, target.inline = enclosed.html, NotifyFormat.HTML, bool(enclosed.pictures)
        files += enclosed.pictures
    sent: bool = target.notify(
        title=title, body=body, notify_type=kind, attach=_attached(files), body_format=format
    )
    return sent


def _attached(files: Sequence[Attachment]) -> Any:
    """None without files. Services that take no files leave them out."""
    if not files:
        return None
    from apprise import AppriseAttachment
    from apprise.attachment.memory import AttachMemory

    loader: Any = AttachMemory
    return AppriseAttachment(
        [loader(content=file.content, name=file.name, mimetype=file.media_type) for file in files]
    )


def _target(address: str) -> Any:
    """None: the address cannot be used, or names a file of this server."""
    import apprise

    if FILES & {name.strip().lower() for name, _ in parse_qsl(address.partition("?")[2], True)}:
        return None
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
