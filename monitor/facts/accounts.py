"""Facts: local accounts of the host, who may log in by them, and the scopes of API tokens."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from msgspec import Struct

# The kernel's login uid of a process without a login.
NO_LOGIN = 0xFFFFFFFF
# Below are root and the accounts of services.
FIRST_USER_UID = 1000
NOBODY = "nobody"
# By distributions and systemd for accounts of services, also dynamic ones, and for `nobody`.
_SERVICES = range(61_184, 65_536)
# By systemd-homed for people.
_HOMES = range(60_001, 60_514)


class AccountRanges(Struct, frozen=True):
    """The uids of people, by the names of login.defs(5); directories give uids above 65535."""

    uid_min: int = FIRST_USER_UID
    uid_max: int = 60_000
    sys_uid_min: int = 100
    sys_uid_max: int = 999

    def is_person(self, uid: int) -> bool:
        if uid < self.uid_min or uid >= NO_LOGIN or uid in _SERVICES:
            return False
        if self.sys_uid_min <= uid <= self.sys_uid_max:
            return False
        return uid <= self.uid_max or uid in _HOMES or uid >= _SERVICES.stop


USUAL_RANGES = AccountRanges()


def is_person(uid: int) -> bool:
    """Whether the uid is a person's by the usual ranges."""
    return USUAL_RANGES.is_person(uid)


class TokenScope(StrEnum):
    """read: see; submit: also submit and change own jobs; operate: also the rights of staff."""

    READ = "read"
    SUBMIT = "submit"
    OPERATE = "operate"


ALL_SCOPES = frozenset(TokenScope)


def submitter(owner: str, agent: str) -> str:
    """The owner of a job, or that it is of an agent of the owner. agent: its name, "" = none."""
    return f"{owner}’s agent" if agent else owner


def up_to(scope: TokenScope) -> frozenset[TokenScope]:
    """The scope with those that it needs."""
    order = list(TokenScope)
    return frozenset(order[: order.index(scope) + 1])


def scopes_text(scopes: Iterable[TokenScope]) -> str:
    """The scopes as a token's row has them."""
    wanted = set(scopes)
    return " ".join(scope.value for scope in TokenScope if scope in wanted)


def scopes_of(text: str) -> frozenset[TokenScope]:
    """Reads scopes_text. Words that are no scope give no right."""
    return frozenset(scope for scope in TokenScope if scope.value in text.split())


class LocalAccounts(StrEnum):
    """Which accounts of the host may log in without a password or token."""

    ANY = "any"
    GROUP = "group"
    KNOWN = "known"
    OWN = "own"
    NONE = "none"


class LocalRule(Struct, frozen=True, kw_only=True):
    """`group`: with GROUP. includes_superusers: they may log in by accounts listed as theirs."""

    accounts: LocalAccounts
    group: str = ""
    includes_superusers: bool = False


class Peer(Struct, frozen=True, kw_only=True):
    """The process at the other end of a Unix socket, as the kernel describes it.

    account: name of the uid by NSS; None: it has none. is_service: its uid is gpucoord's own.
    is_of_job: it descends from a runner, or carries marks of a job. problem: what could not be
    read about it; "" = nothing.
    """

    pid: int
    uid: int
    account: str | None = None
    groups: frozenset[str] = frozenset()
    container: str | None = None
    is_in_host_namespace: bool = True
    is_service: bool = False
    is_of_job: bool = False
    problem: str = ""

    @property
    def is_administrator(self) -> bool:
        """Whether it is of root or of gpucoord's own account, which can read the database."""
        return self.uid == 0 or self.is_service
