"""Rows: which OS account belongs to which user."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime, timedelta
from hashlib import sha256
from threading import Lock

from django.conf import settings
from django.contrib.auth.models import User
from django.db import IntegrityError, OperationalError, transaction
from django.db.models import F, Q, Sum

from monitor.facts.accounts import ALL_SCOPES, TokenScope, scopes_of, scopes_text
from monitor.facts.input_rules import character_problem
from monitor.journal.rows import audit
from monitor.models import Agent, ApiToken, LoginLink, OsAccount, ProcessHour
from monitor.owners.policy import Look, looks, next_look
from monitor.runtime.policy import TimedCache
from monitor.runtime.rows.database import MARK, TEXT_MARK, PreparedQuery

SAME_NAME = "same name as the user"
FIRST_LOGIN = "first login on the server"
EARLIER_USER = "user from before accounts were listed"
# System accounts that no user may have: jobs would run as them.
RESERVED_ACCOUNTS = frozenset(("root", "nobody"))


class NameTaken(LookupError):
    """A user with the account's name exists, but the account is not theirs."""


_NAMES = PreparedQuery(
    lambda user: OsAccount.objects.filter(user=user).values_list("name", flat=True)[:1],
    MARK,
)


def name_of(user: User) -> str | None:
    """The OS account of a user; None = no account is listed."""
    return next(iter(_NAMES.rows(user.pk)), None)


def name_problem(account: str) -> str | None:
    """Why this can't be the name of a user's account, in a sentence; None: it can."""
    if account in RESERVED_ACCOUNTS:
        return f"The system account {account} cannot be the OS account of a user."
    return character_problem(account)


def user_of(account: str) -> User | None:
    row = OsAccount.objects.select_related("user").filter(name=account).first()
    return None if row is None else row.user


def assign(user: User, account: str, now: datetime, origin: str) -> bool:
    """List the account as the user's. False: it is another user's, or the user has one."""
    try:
        with transaction.atomic():
            OsAccount.objects.create(user=user, name=account, created_at=now, origin=origin)
    except IntegrityError:
        return False
    return True


def change(user: User, account: str, *, by: str, now: datetime) -> bool:
    """List this account in place of the user's present one; "" = none. False: another user's."""
    before = name_of(user)
    if account == (before or ""):
        return True
    with transaction.atomic():
        # A failed assignment leaves the present one.
        point = transaction.savepoint()
        OsAccount.objects.filter(user=user).delete()
        if account and not assign(user, account, now, f"assigned by {by}"[:80]):
            transaction.savepoint_rollback(point)
            return False
        name = user.get_username()
        text = f"{by} removed the OS account {before} of {name}"
        if account:
            text = f"{by} assigned the OS account {account} to {name}"
        pairs = [{"user": name, "account": each} if each else None for each in (before, account)]
        audit.note("OS_ACCOUNT_CHANGED", text, by=by, now=now, subject=f"user {name}",
                   before=pairs[0], after=pairs[1])  # fmt: skip
    return True


def person_of(account: str, now: datetime) -> User:
    """The user of the account, created at the first contact. Raises NameTaken."""
    if (user := user_of(account)) is not None:
        return user
    try:
        with transaction.atomic():
            return _create(account, now)
    except IntegrityError:
        # A login at the same time was first; or the name belongs to another user.
        if (user := user_of(account)) is not None:
            return user
        raise NameTaken(account) from None


def _create(account: str, now: datetime) -> User:
    user = User(username=account, date_joined=now)
    user.set_unusable_password()
    user.has_listed_account = True  # type: ignore[attr-defined]
    user.save()
    OsAccount.objects.create(user=user, name=account, created_at=now, origin=FIRST_LOGIN)
    text = f"{account} was created at the first login by OS account"
    audit.note("USER_CREATED", text, by=audit.GPUCOORD, now=now, subject=f"user {account}")
    return user


def adopt_earlier_users(now: datetime) -> int:
    """After the upgrade that brought this table: each user has the account with their name.

    Returns how many accounts were listed; 0 once there is any.
    """
    if OsAccount.objects.exists():
        return 0
    names = User.objects.values_list("pk", "username")
    rows = [
        OsAccount(user_id=pk, name=name, created_at=now, origin=EARLIER_USER) for pk, name in names
    ]
    return len(OsAccount.objects.bulk_create(rows, batch_size=500))


def shown_names() -> dict[str, str]:
    """For each OS account that is not shown by its own name: the name that is shown.

    A listed account is shown as its user. An account with the name of a user whose account it is
    not is shown as "NAME (OS account)", so that it is not taken for that user.
    """
    strangers = User.objects.exclude(os_account__name=F("username"))
    shown = {name: f"{name} (OS account)" for name in strangers.values_list("username", flat=True)}
    listed = OsAccount.objects.exclude(name=F("user__username"))
    return shown | dict(listed.values_list("name", "user__username"))


# Tokens for REST and login links. Only their SHA-256 is stored.


PREFIX = "gpc_"
SHOWN = 12
LINK_LIVES = timedelta(seconds=60)
# A busy client would else write a row with each request.
USE_IS_NOTED_EVERY = timedelta(minutes=1)


def create_token(
    user: User,
    now: datetime,
    *,
    name: str = "",
    lives: timedelta | None = None,
    scopes: Iterable[TokenScope] = ALL_SCOPES,
    host: str = "",
    agent: Agent | None = None,
) -> tuple[ApiToken, str]:
    """Make a token for `user`; the text is nowhere to be had later. lives None = for ever.

    host: the only host on which it is valid; "" = on all. agent: who uses it.
    """
    text = PREFIX + secrets.token_urlsafe(32)
    row = ApiToken.objects.create(
        user=user,
        name=name,
        prefix=text[:SHOWN],
        digest=digest(text),
        created_at=now,
        expires_at=None if lives is None else now + lives,
        scopes=scopes_text({TokenScope.READ, *scopes}),
        host=host,
        agent=agent,
    )
    return row, text


def authenticate(text: str, now: datetime) -> User | None:
    """The row of this token; None when it is unknown, expired, or its user may not log in."""
    row = find(text, now)
    return None if row is None else row.user


_TOKENS = PreparedQuery(
    lambda hashed: ApiToken.objects.select_related("user", "agent").filter(digest=hashed), TEXT_MARK
)


def find(text: str, now: datetime) -> ApiToken | None:
    """The token with its user; None: unknown, expired, of another host, or the user is inactive."""
    hashed = digest(text)
    row = next(iter(_TOKENS.rows(hashed)), None)
    if row is None or not hmac.compare_digest(row.digest, hashed):
        return None
    if not row.user.is_active or (row.expires_at is not None and row.expires_at <= now):
        return None
    if row.host not in ("", settings.CONFIG.node):
        return None
    _note_use(row, now)
    return row


def user_within(row: ApiToken) -> User:
    """The token's user with the rights that its scopes leave. Don't save it.

    Without OPERATE, it has no rights of staff.
    """
    user = row.user
    if TokenScope.OPERATE not in scopes_of(row.scopes):
        user.is_staff = user.is_superuser = False
    return user


def revoke_all(user: User) -> int:
    """Delete the tokens and login links of a user. Returns how many tokens there were."""
    LoginLink.objects.filter(user=user).delete()
    return ApiToken.objects.filter(user=user).delete()[0]


def create_link(user: User, now: datetime) -> str:
    """The secret of a new login link, which is valid once, for LINK_LIVES."""
    text = secrets.token_urlsafe(32)
    LoginLink.objects.filter(expires_at__lte=now).delete()
    LoginLink.objects.create(user=user, digest=digest(text), expires_at=now + LINK_LIVES)
    return text


def owner_of_link(text: str, now: datetime) -> User | None:
    """The user of the link, which is not used up. None: as of `use_link`."""
    links = LoginLink.objects.select_related("user").filter(digest=digest(text), expires_at__gt=now)
    row = links.filter(user__is_active=True).first()
    return None if row is None else row.user


def use_link(text: str, now: datetime) -> User | None:
    """The user of the link, which is used up by this. None: unknown, used, expired or inactive."""
    row = LoginLink.objects.select_related("user").filter(digest=digest(text)).first()
    # Of two requests at once, one deletes the row.
    if row is None or not LoginLink.objects.filter(pk=row.pk).delete()[0]:
        return None
    return row.user if row.expires_at > now and row.user.is_active else None


def digest(text: str) -> str:
    return sha256(text.encode("utf-8", "replace")).hexdigest()


def _note_use(row: ApiToken, now: datetime) -> None:
    before = now - USE_IS_NOTED_EVERY
    if row.last_used_at is not None and row.last_used_at > before:
        return
    unnoted = Q(last_used_at=None) | Q(last_used_at__lte=before)
    # With a full disk nothing can be stored, but requests that only read are still answered.
    with suppress(OperationalError):
        ApiToken.objects.filter(unnoted, pk=row.pk).update(last_used_at=now)


# The looks of all owners in this process: the same on each of its pages.

# The time whose use counts for the colours, and how long they are kept.
LOOK_BACK, KEPT = timedelta(days=7), timedelta(hours=1)

_lock = Lock()
_looks: dict[str, Look] = {}


def look_of(name: str) -> Look:
    """An owner who was not there yet gets the next look that is free."""
    with _lock:
        if name not in _looks:
            _looks[name] = next_look(name, _looks)
        return _looks[name]


def _load(now: datetime) -> dict[str, float]:
    """The held GPU time of each owner, and all users without any."""
    since = int((now - LOOK_BACK).timestamp())
    users = User.objects.filter(is_active=True).values_list("username", flat=True)
    sizes = dict.fromkeys(users, 0.0)
    rows = ProcessHour.objects.filter(t__gte=since).order_by()
    columns = ("use__job_owner", "use__user")
    for job_owner, user, held_s in rows.values_list(*columns).annotate(Sum("held_s")):
        if name := job_owner or user:
            sizes[name] = sizes.get(name, 0.0) + held_s
    return sizes


def _give(now: datetime) -> dict[str, Look]:
    sizes = _load(now)
    with _lock:
        given = looks(sizes)
        for name in sorted(_looks.keys() - sizes.keys()):
            given[name] = next_look(name, given)
        _looks.clear()
        _looks.update(given)
    return given


# refresh(now) gives the colours to the owners with the most use, if that was long ago. It returns
# the looks as they were given.
refresh = TimedCache(_give, KEPT)


def forget() -> None:
    """No owner has a look."""
    refresh.forget()
    _looks.clear()
