"""Facts: local accounts of the host, their tokens, and what their jobs claim of GPUs."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
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


class ClaimKind(StrEnum):
    """script: a job · llm: a model that stays · lock: held through its lock file ·

    unknown: a row with a kind that this version does not have; no user is charged or accused.
    """

    SCRIPT = "script"
    LLM = "llm"
    LOCK = "lock"
    UNKNOWN = "unknown"

    @classmethod
    def _missing_(cls, value: object) -> ClaimKind:
        return cls.UNKNOWN


# The phase of a model that has left its GPU but not ended.
ASLEEP = "sleeping"
# Kinds of the rows of jobs and models.
JOB_KINDS = (ClaimKind.SCRIPT, ClaimKind.LLM)


class ClaimFact(Struct, frozen=True, kw_only=True):
    """A job's hold on a GPU, written by the scheduler.

    `seen`: when a process of it was first seen there; `until`: when it ended. An ended claim is
    kept until the memory of its processes is free. `holder`: of a lock, its holder in words; of a
    job, the owner's agent that submitted it, "" = none.
    `phase`: of a model: "booting", "ready", "busy", "sleeping"; of a worker of a batch: "booting",
    "busy"; of another job "busy" once it has reported progress; "" = unknown.
    `task`: the job's name. `script`: the registered script that it runs; "" = another command.
    `counts_tasks`: it is a model or a worker of a batch.
    """

    job_ref: str
    gpu_uuid: str
    owner: str
    memory_bytes: int | None = None
    exclusive: bool = False
    leader_pid: int | None = None
    leader_start_ticks: int | None = None
    since: datetime | None = None
    kind: ClaimKind = ClaimKind.SCRIPT
    seen: datetime | None = None
    until: datetime | None = None
    row: int | None = None
    holder: str = ""
    phase: str = ""
    task: str = ""
    script: str = ""
    counts_tasks: bool = False


class GpuTask(Struct, frozen=True, kw_only=True):
    """A job or a model on a GPU. progress: 0 to 1. None: it reports none, or its end is unknown.

    name: of a model, that of its service. phase, port, expected_ready: of a model. paired: UUIDs of
    the other GPUs that it has. paired_with: their numbers. agent: the owner's agent that submitted
    it, "" = none. tasks_completed: requests that the model has answered, or items that the worker
    has completed; None: it is neither.
    """

    job_ref: str
    name: str
    owner: str
    progress: float | None = None
    ends_at: datetime | None = None
    tasks_completed: int | None = None
    kind: ClaimKind = ClaimKind.SCRIPT
    phase: str = ""
    script: str = ""
    pid: int | None = None
    port: int | None = None
    since: datetime | None = None
    expected_ready: datetime | None = None
    paired: tuple[str, ...] = ()
    paired_with: tuple[int, ...] = ()
    agent: str = ""

    @property
    def submitter(self) -> str:
        return submitter(self.owner, self.agent)

    @property
    def sleeps(self) -> bool:
        return self.phase == ASLEEP

    @property
    def is_model(self) -> bool:
        return self.kind is ClaimKind.LLM

    @property
    def completed(self) -> str:
        """`23 requests` of a model, `7 items` of a worker; "" = neither, or unknown."""
        if self.tasks_completed is None:
            return ""
        word = "request" if self.is_model else "item"
        return f"{self.tasks_completed} {word}{'' if self.tasks_completed == 1 else 's'}"

    @property
    def has_progress(self) -> bool:
        """Whether a job's progress, expected end, items or other GPUs are known."""
        known = (self.percent, self.ends_at, self.tasks_completed)
        return any(value is not None for value in known) or bool(self.paired_with)

    @property
    def percent(self) -> int | None:
        """Rounded down: 100 % means that it is complete."""
        return None if self.progress is None else int(self.progress * 100)


class Demand(Struct, frozen=True, kw_only=True):
    """A job that waits only because other users hold the GPUs that it needs.

    gpus: how many it asks for. gpu_uuids: which would do, () = any.
    """

    owner: str
    since: datetime
    job_ref: str = ""
    gpus: int = 1
    gpu_uuids: tuple[str, ...] = ()
