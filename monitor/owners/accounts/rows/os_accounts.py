"""Rows: which OS account belongs to which user."""

from __future__ import annotations

from datetime import datetime

from django.contrib.auth.models import User
from django.db import IntegrityError, transaction
from django.db.models import F

from monitor.facts.input_rules import character_problem
from monitor.journal.rows import audit
from monitor.models import OsAccount
from monitor.runtime.rows.prepared import MARK, PreparedQuery

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
