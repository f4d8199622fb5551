"""Logins by OS account: a Unix socket gives each local user a token or a login link.

The kernel names the process that connects (SO_PEERCRED), so neither a password nor a saved token
is needed. A request is one word and a line end, the answer one JSON object. The supervisor binds
the socket, so that connections wait while the web process is replaced.
"""

from __future__ import annotations

import json
import logging
import socket
import threading
import time
from collections import defaultdict, deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

from django.contrib.auth.models import User
from django.db import DatabaseError, connections
from django.urls import reverse
from django.utils import timezone

from gpucoord_site.config.settings import Config
from monitor.facts.accounts import LocalAccounts, LocalRule, Peer
from monitor.journal.rows import audit
from monitor.owners import policy, rows
from monitor.owners.probes.credentials import PeerReader, credentials
from scheduler.facts.language_models import OWNER

TOKEN, LINK = "token", "link"
LIVES = timedelta(minutes=10)
# A token is given again to the same account as long as it is at least that long valid.
LEFT_AT_LEAST = timedelta(minutes=5)
REQUEST_S = 2.0
LONGEST_REQUEST = 64
WORKERS = 4
# Per account and window, and open at the same time.
MOST_REQUESTS, WINDOW_S = 100, 10.0
MOST_OPEN = 8
# Between two log lines about refusals of an account.
QUIET_S = 60.0
TOO_MANY = "Too many logins of your account at once; try again in a few seconds."
UNAVAILABLE = "The database is not available now; try again in a few seconds."
logger = logging.getLogger(__name__)


class Refused(Exception):
    """No login; the message is a sentence for the user."""


class LocalLogin:
    """Serves the socket in threads of its own. `address`: where the REST API is, for clients."""

    def __init__(self, listening: socket.socket, address: str, config: Config) -> None:
        self._listening, self._address, self._config = listening, address, config
        self._rule = config.local_rule
        self._peers = PeerReader(with_groups=self._rule.accounts is LocalAccounts.GROUP)
        self._limits = RequestLimits()
        self._given: dict[int, tuple[str, datetime]] = {}
        self._pool = ThreadPoolExecutor(WORKERS, "local-login")

    def start(self) -> None:
        threading.Thread(target=self._accept, name="local-login", daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                # Too many open files, or the service ends.
                time.sleep(0.1)
                continue
            with suppress(Exception):
                self._admit(connection)
                continue
            connection.close()

    def _admit(self, connection: socket.socket) -> None:
        """Reject what is too much before anything is read, looked up or stored."""
        _, uid = credentials(connection)
        if not self._limits.begin(uid, time.monotonic()):
            connection.setblocking(False)
            with connection:
                connection.send(_encoded({"error": TOO_MANY, "retry": True}))
            return
        try:
            self._pool.submit(self._serve, connection, uid)
        except RuntimeError:
            self._limits.end(uid)
            raise

    def _serve(self, connection: socket.socket, uid: int) -> None:
        try:
            with connection:
                connection.settimeout(REQUEST_S)
                request = connection.recv(LONGEST_REQUEST)
                connection.sendall(_encoded(self._answer(connection, request)))
        except OSError:
            # The client has gone, or sent nothing.
            pass
        except Exception:
            logger.exception("A login by OS account failed", extra={"kind": "LOCAL_LOGIN_FAILED"})
        finally:
            self._limits.end(uid)
            connections.close_all()

    def _answer(self, connection: socket.socket, request: bytes) -> dict[str, Any]:
        word = request.decode("ascii", "replace").strip()
        if word not in (TOKEN, LINK):
            return {"error": f"The request must be {TOKEN} or {LINK}."}
        peer = self._peers.describe(connection)
        now = timezone.now()
        try:
            user = login(peer, self._rule, self._config, now)
            return self._link(user, now) if word == LINK else self._token(user, peer, now)
        except Refused as refusal:
            if self._limits.is_first_refusal(peer.uid, time.monotonic()):
                _log_refusal(peer, refusal)
            return {"error": str(refusal)}
        except DatabaseError:
            return {"error": UNAVAILABLE, "retry": True}

    def _token(self, user: User, peer: Peer, now: datetime) -> dict[str, Any]:
        text, until = self._given.get(user.pk, ("", now))
        if until - now < LEFT_AT_LEAST or rows.find(text, now) is None:
            text, until = give_token(user, self._config.node, now), now + LIVES
            self._given[user.pk] = (text, until)
        headers = {"X-Forwarded-Proto": "https"} if self._config.https else {}
        return {
            "token": text,
            "user": user.get_username(),
            "expires_at": until.isoformat(),
            "url": self._address,
            "headers": headers,
        }

    def _link(self, user: User, now: datetime) -> dict[str, Any]:
        path = reverse("login-link", args=[rows.create_link(user, now)])
        about = {"kind": "LOGIN_LINK_MADE", "user": user.get_username()}
        logger.info("A login link of %s was made", user.get_username(), extra=about)
        _audit("LOGIN_LINK_MADE", "made a login link", user, self._config.node, now)
        return {
            "path": path,
            "user": user.get_username(),
            "url": self._address,
            "public_url": self._config.public_url,
            "seconds": round(rows.LINK_LIVES.total_seconds()),
        }


class RequestLimits:
    """Bounds the requests of each account, open ones and those of the last seconds."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[int, int] = defaultdict(int)
        self._times: dict[int, deque[float]] = defaultdict(lambda: deque(maxlen=MOST_REQUESTS))
        self._refused_at: dict[int, float] = {}

    def begin(self, uid: int, now_s: float) -> bool:
        """Count a request; False: it is one too many."""
        with self._lock:
            times = self._times[uid]
            is_flood = len(times) == MOST_REQUESTS and now_s - times[0] < WINDOW_S
            if is_flood or self._open[uid] >= MOST_OPEN:
                return False
            times.append(now_s)
            self._open[uid] += 1
            return True

    def end(self, uid: int) -> None:
        with self._lock:
            self._open[uid] -= 1

    def is_first_refusal(self, uid: int, now_s: float) -> bool:
        """Whether the account was not refused within the last minute."""
        with self._lock:
            is_first = now_s - self._refused_at.get(uid, -QUIET_S) >= QUIET_S
            if is_first:
                self._refused_at[uid] = now_s
            return is_first


def login(peer: Peer, rule: LocalRule, config: Config, now: datetime) -> User:
    """The user of this process's account; created at the first contact. Raises Refused."""
    if reason := policy.refusal(peer, rule):
        raise Refused(reason)
    user = _user(peer, rule, config, now)
    if not user.is_active:
        raise Refused(f"The user {user.get_username()} is deactivated. Ask an operator.")
    if user.is_superuser and not (peer.is_administrator or rule.includes_superusers):
        raise Refused(
            f"The user {user.get_username()} is a superuser; superusers can't log in by their OS"
            " account (local_superusers = false). Use a password or an API token."
        )
    return user


def _user(peer: Peer, rule: LocalRule, config: Config, now: datetime) -> User:
    if peer.is_administrator:
        admin = User.objects.filter(username=config.admin_user, is_superuser=True).first()
        if admin is None:
            raise Refused(
                f"root and the account of gpucoord log in as {config.admin_user} (admin_user),"
                " which is no superuser here. Set admin_user to the name of one."
            )
        return admin
    # The policy refused accounts without a name.
    account = peer.account or ""
    if account == OWNER:
        raise Refused(f"The account {OWNER} runs model servers, which are no users.")
    if rule.accounts is LocalAccounts.KNOWN:
        user = rows.user_of(account)
        if user is None:
            raise Refused(
                f"The account {account} belongs to no user here (local_accounts = known)."
                " An operator adds it in the admin, under OS accounts."
            )
        return user
    try:
        return rows.person_of(account, now)
    except rows.NameTaken:
        raise Refused(
            f"The user {account} exists, but without the OS account {account}."
            " If both are you, an operator assigns it in the admin, under OS accounts."
        ) from None


def give_token(user: User, host: str, now: datetime) -> str:
    """A token that is valid on this host for LIVES. Expired ones of the user are deleted."""
    user.api_tokens.exclude(host="").filter(expires_at__lte=now).delete()
    _, text = rows.create_token(user, now, name=f"SSH login on {host}", lives=LIVES, host=host)
    _audit("LOCAL_LOGIN", "logged in by OS account", user, host, now)
    about = {"kind": "LOCAL_LOGIN", "user": user.get_username()}
    logger.info("%s logged in by OS account", user.get_username(), extra=about)
    return text


def _log_refusal(peer: Peer, refusal: Refused) -> None:
    about = {"kind": "LOCAL_LOGIN_REFUSED", "uid": peer.uid, "account": peer.account or ""}
    logger.warning("A login by OS account was refused: %s", refusal, extra=about)


def _audit(action: str, did: str, user: User, host: str, now: datetime) -> None:
    name = user.get_username()
    audit.note(action, f"{name} {did} on {host}", by=name, now=now, subject=f"user {name}")


def _encoded(answer: dict[str, Any]) -> bytes:
    return json.dumps(answer).encode() + b"\n"
