"""The owner and container of a process, by a ladder of evidence; who may see it, who may log in.

Job, subordinate uid range, owner of the user namespace, mounted home folder, login, uid: the first
evidence that is available decides. A uid inside a container never names a person of the host.
A uid names no person if the login, or without one the session, is of another account; outside the
mounts of the host, it has to be of that person.
Labels of a container name no owner, because any user may write them; they only contradict.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from string import ascii_lowercase, digits
from types import MappingProxyType

from msgspec import Struct
from msgspec.structs import replace

from monitor.facts.accounts import (
    FIRST_USER_UID,
    NO_LOGIN,
    NOBODY,
    USUAL_RANGES,
    AccountRanges,
    ClaimFact,
    LocalAccounts,
    LocalRule,
    Peer,
)
from monitor.facts.formats import user_number
from monitor.facts.readings import (
    GpuProcess,
    OwnerSource,
    ProcessIdentity,
    ProcessReading,
    Snapshot,
)


class UidRange(Struct, frozen=True):
    """`count` uids of the host from `first`; of /etc/subuid also whose they are."""

    first: int
    count: int
    owner_uid: int | None = None

    def holds(self, other: UidRange) -> bool:
        end = other.first + other.count
        return self.first <= other.first and end <= self.first + self.count


class Credentials(Struct, frozen=True, kw_only=True):
    """The kernel's facts about a process; all uids as the host counts them, None = unknown.

    has_host_mounts: its mounts and root folder are those of the host. namespace_owner_uid: the
    account that made its user namespace; entered_uid: that of its nearest parent outside of this
    namespace. session_uid: the user slice of systemd that its cgroup is in. mount_owners: the
    persons into whose closed home folders its bind mounts lead. labelled: the users named by the
    labels of its container. is_labelled_known: the labels were read, or there are none to read.
    labelled_job: the job that a label names.
    """

    uid: int | None
    login_uid: int | None = None
    container: str | None = None
    is_in_host_namespace: bool = True
    has_host_mounts: bool = True
    uid_map: tuple[UidRange, ...] = ()
    namespace_owner_uid: int | None = None
    entered_uid: int | None = None
    session_uid: int | None = None
    mount_owners: frozenset[int] = frozenset()
    labelled: frozenset[str | int] = frozenset()
    is_labelled_known: bool = True
    labelled_job: str = ""
    job_cgroup: str = ""


class Owner(Struct, frozen=True):
    """uid None: unknown."""

    uid: int | None
    source: OwnerSource


UNKNOWN = Owner(None, OwnerSource.UNKNOWN)


def owner_of(
    process: Credentials,
    subordinate: Sequence[UidRange] = (),
    ranges: AccountRanges = USUAL_RANGES,
) -> Owner:
    """`subordinate`: the ranges of /etc/subuid."""
    if not process.is_in_host_namespace:
        match = _owner_of_namespace(process, subordinate, ranges)
        if match.uid is not None:
            # A process of another account may have entered the namespace.
            return match if _starter(process) in (None, match.uid) else UNKNOWN
        # Docker's remapped uids name an account of docker only.
        return match if process.container is None else _owner_of_container(process, ranges)
    if process.container is not None:
        return _owner_of_container(process, ranges)
    if process.uid is None:
        return UNKNOWN
    if ranges.is_person(process.uid):
        has_no_witness = _witness(process) is None and process.has_host_mounts
        is_certain = agrees(process) or has_no_witness
        return Owner(process.uid, OwnerSource.UID) if is_certain else UNKNOWN
    if process.login_uid is not None and ranges.is_person(process.login_uid):
        # sudo does not hide the user: the account that logged in started the process.
        return Owner(process.login_uid, OwnerSource.LOGIN)
    is_daemon = process.uid < ranges.uid_min
    return Owner(process.uid, OwnerSource.UID) if is_daemon else UNKNOWN


def agrees(process: Credentials) -> bool:
    """Whether the login, or without one the session, is of the account that the process runs as."""
    witness = _witness(process)
    return witness is not None and witness == process.uid


def _witness(process: Credentials) -> int | None:
    """The account of the login, or without one of the session. None: services have neither."""
    return process.session_uid if process.login_uid in (None, NO_LOGIN) else process.login_uid


def _starter(process: Credentials) -> int | None:
    """The account that started a process in a namespace; None: no evidence."""
    witness = _witness(process)
    return process.entered_uid if witness is None else witness


def _owner_of_container(process: Credentials, ranges: AccountRanges) -> Owner:
    """All evidence must name one person.

    The home folders that it mounts; and of podman, which has no service that starts containers for
    others, the login. The login of docker's processes is that of the account that started docker.
    """
    login = process.login_uid if (process.container or "").startswith("podman ") else None
    logins = {login} if login is not None and ranges.is_person(login) else set()
    people = process.mount_owners | logins
    if len(people) != 1 or not process.is_labelled_known or process.labelled - people:
        return UNKNOWN
    (person,) = people
    return Owner(person, OwnerSource.MOUNT if process.mount_owners else OwnerSource.LOGIN)


def _owner_of_namespace(
    process: Credentials, subordinate: Sequence[UidRange], ranges: AccountRanges
) -> Owner:
    """The uid map names whose ranges are used; who made the namespace has to agree.

    A runtime of root may use the ranges of any account, so these alone name no person.
    """
    maker = process.namespace_owner_uid
    if maker is not None:
        makers = {maker} if ranges.is_person(maker) else set()
        makers = _owners(UidRange(maker, 1), subordinate, ranges) or makers
    else:
        makers = {process.session_uid} if process.session_uid is not None else set()
    mapped = {uid for part in process.uid_map for uid in _owners(part, subordinate, ranges)}
    if len(makers) != 1:
        return UNKNOWN
    (person,) = makers
    if person in mapped:
        return Owner(person, OwnerSource.SUBUID)
    return UNKNOWN if mapped or maker is None else Owner(person, OwnerSource.RUNTIME)


def _owners(part: UidRange, subordinate: Iterable[UidRange], ranges: AccountRanges) -> set[int]:
    """The persons in whose range `part` lies."""
    owner_uids = (s.owner_uid for s in subordinate if s.holds(part))
    return {uid for uid in owner_uids if uid is not None and ranges.is_person(uid)}


def uid_map_of(text: str) -> tuple[UidRange, ...]:
    """The outside ranges of /proc/PID/uid_map; lines that are no map are left out."""
    return tuple(
        UidRange(numbers[1], numbers[2])
        for numbers in map(_numbers, text.splitlines())
        if len(numbers) == 3
    )


def _numbers(line: str) -> list[int]:
    words = line.split()
    return [int(word) for word in words] if all(w.isdecimal() for w in words) else []


def subordinate_lines(text: str) -> Iterator[tuple[str, int, int]]:
    """(account or uid, first, count) of the lines of /etc/subuid."""
    for line in text.splitlines():
        name, _, rest = line.strip().partition(":")
        first, _, count = rest.partition(":")
        if name and not name.startswith("#") and first.isdecimal() and count.isdecimal():
            yield name, int(first), int(count)


# The long id that every runtime gives its containers; people know its first twelve characters.
_ID = r"(?P<id>[0-9a-f]{64})"
_SHORT = 12
_UUID = r"[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32}"
_POD = re.compile(rf"(?:^|[/-])pod(?P<uid>{_UUID})")
_RUNTIMES = (
    ("cri-o", re.compile(rf"crio-{_ID}")),
    ("containerd", re.compile(rf"(?:cri-containerd-|cri-containerd:|nerdctl-){_ID}")),
    ("podman", re.compile(rf"libpod-{_ID}")),
    ("docker", re.compile(rf"(?:docker-|/docker/){_ID}")),
    # `ctr` and plain containerd put a container right below its namespace.
    ("containerd", re.compile(rf"^/(?:default|moby|k8s\.io|containerd)/{_ID}")),
)
_NAME = r"(?P<name>[\w.-]{1,64})"
# Runtimes that put the container's own name into the path.
_NAMED = (
    ("lxc", re.compile(rf"/lxc(?:\.payload)?[./]{_NAME}")),
    ("nspawn", re.compile(rf"/machine\.slice/machine-{_NAME}\.scope")),
    ("nspawn", re.compile(rf"systemd-nspawn@{_NAME}\.service")),
)
_SESSION = re.compile(r"/user\.slice/user-(\d{1,10})\.slice(?:/|$)")
_JOB = re.compile(r"^[^:\n]*:[^:\n]*:(/(?:[^/\n]+/)*\w+-job-\d+-\d+)(?:/|$)", re.MULTILINE)
# As cgroup v1 and v2 plugins of Slurm name it, with or without the node: steps are below it.
_SLURM = re.compile(
    r"^[^:\n]*:[^:\n]*:(/(?:[^/\n]+/)*(?:slurm[^/\n]*(?:/uid_\d+)?|[^/\n]+_slurmstepd\.scope)"
    r"/job_\d{1,10})(?:/|$)",
    re.MULTILINE,
)
# Most processes of a host share their cgroup with others.
PATHS_KEPT = 256
_ANY = re.compile(rf"(?:^|[/:-]){_ID}(?:\.scope)?(?:/|$)")


@lru_cache(maxsize=PATHS_KEPT)
def container_of(cgroup: str) -> str | None:
    """Such as "docker 0123456789ab" or "pod 1b2c3d4e-… 0123456789ab"; None outside of any.

    All controllers of cgroup v1 and the one line of v2 are looked at: the first that tells counts.
    """
    for line in cgroup.splitlines():
        path = line.split(":", 2)[-1]
        container = _in_path(path)
        if container is not None:
            return container
    return None


def _in_path(path: str) -> str | None:
    pod = _POD.search(path)
    inside = _runtime(path)
    if pod is not None:
        uid = pod["uid"].replace("_", "-")
        return f"pod {uid} {inside[1]}" if inside else f"pod {uid}"
    return f"{inside[0]} {inside[1]}" if inside else None


def _runtime(path: str) -> tuple[str, str] | None:
    for name, pattern in _RUNTIMES:
        match = pattern.search(path)
        if match:
            return name, match["id"][:_SHORT]
    match = _ANY.search(path)
    if match:
        return "container", match["id"][:_SHORT]
    named = ((name, pattern.search(path)) for name, pattern in _NAMED)
    return next(((name, match["name"]) for name, match in named if match), None)


def container_id_of(cgroup: str) -> str | None:
    """The full id of the container, as runtimes know it; None: it has none."""
    match = re.search(_ID, cgroup) if container_of(cgroup) else None
    return match["id"] if match else None


@lru_cache(maxsize=PATHS_KEPT)
def job_cgroup_of(cgroup: str) -> str:
    """The path of the cgroup of a job that the process is in, or "".

    A job of gpucoord is in INSTANCE-job-JOB-ATTEMPT, a job of Slurm in job_NUMBER.
    """
    match = _JOB.search(cgroup) or _SLURM.search(cgroup)
    return match[1] if match else ""


@lru_cache(maxsize=PATHS_KEPT)
def session_uid(cgroup: str) -> int | None:
    """The uid of the user slice of systemd that the process is in."""
    match = _SESSION.search(cgroup)
    return int(match[1]) if match else None


def attribute(
    processes: Iterable[GpuProcess],
    identities: Mapping[int, ProcessIdentity],
    claims: Iterable[ClaimFact],
    names: Mapping[str, str] = MappingProxyType({}),
) -> tuple[ProcessReading, ...]:
    """Every process with its owner and job, as far as they are known.

    names: for OS accounts that are not shown by their own name, the name that is shown.
    The cgroup of a job is that of its leader: a path alone could be imitated.
    """
    leaders = {c.leader_pid: c for c in claims if c.leader_pid is not None}
    cgroups = {
        identity.job_cgroup: claim
        for pid, claim in leaders.items()
        if (identity := identities.get(pid)) is not None
        and identity.job_cgroup
        and identity.start_ticks == claim.leader_start_ticks
    }
    readings = (_reading(p, identities.get(p.pid), leaders, cgroups) for p in processes)
    shown = (replace(r, user=names.get(r.user or "", r.user)) if names else r for r in readings)
    refs = {claim.job_ref: claim for claim in leaders.values()}
    return tuple(_with_labelled_job(r, identities.get(r.pid), refs) for r in shown)


def _with_labelled_job(
    process: ProcessReading, identity: ProcessIdentity | None, jobs: Mapping[str, ClaimFact]
) -> ProcessReading:
    """A container outside of its job's cgroup, by its label.

    Any user can write labels, so the owner of the container must be the owner of the job.
    """
    claim = jobs.get(identity.labelled_job) if identity and process.job_ref is None else None
    if claim is None or process.user != claim.owner:
        return process
    return replace(process, job_ref=claim.job_ref, job_owner=claim.owner)


def _reading(
    process: GpuProcess,
    identity: ProcessIdentity | None,
    leaders: Mapping[int, ClaimFact],
    cgroups: Mapping[str, ClaimFact],
) -> ProcessReading:
    claim = _claim(process.pid, identity, leaders)
    if claim is None and identity is not None and identity.job_cgroup:
        claim = cgroups.get(identity.job_cgroup)
    return ProcessReading(
        gpu_uuid=process.gpu_uuid,
        pid=process.pid,
        start_ticks=identity.start_ticks if identity else None,
        created_at=identity.created_at if identity else None,
        uid=identity.uid if identity else None,
        user=identity.user if identity else None,
        program=identity.program if identity else None,
        command=identity.command if identity else None,
        memory_bytes=process.memory_bytes,
        sm_pct=process.sm_pct,
        kinds=process.kinds,
        source=process.source,
        container=identity.container if identity else None,
        instance=process.instance,
        job_ref=claim.job_ref if claim else None,
        job_owner=claim.owner if claim else None,
        owner_source=_source(identity, claim),
        encoder_pct=process.encoder_pct,
    )


def _source(identity: ProcessIdentity | None, claim: ClaimFact | None) -> OwnerSource:
    if claim is not None:
        return OwnerSource.JOB
    return identity.owner_source if identity else OwnerSource.UNKNOWN


def _claim(
    pid: int, identity: ProcessIdentity | None, leaders: Mapping[int, ClaimFact]
) -> ClaimFact | None:
    """The job whose leader is the process itself, leads its session, or is among its parents."""
    own = leaders.get(pid)
    if own is not None:
        # The same pid with another start is another process: the leader has ended.
        has_start_times = identity is not None and own.leader_start_ticks is not None
        return own if not has_start_times or _ticks(identity) == own.leader_start_ticks else None
    if identity is None:
        return None
    for other in (identity.session, *identity.lineage):
        claim = leaders.get(other) if other is not None else None
        if claim is not None and _may_descend(identity, claim):
            return claim
    return None


def _ticks(identity: ProcessIdentity | None) -> int | None:
    return identity.start_ticks if identity else None


def _may_descend(identity: ProcessIdentity, claim: ClaimFact) -> bool:
    """Whether it is not older than the job's leader, whose pid was of another process before."""
    return claim.leader_start_ticks is None or identity.start_ticks >= claim.leader_start_ticks


# Visibility of processes and events: operators see all, users their own and their jobs'.

# Events that end with an error message, which may name files of the owner or of the service.
_WITH_DETAILS = {
    "ALERT_FAILED",
    "ENFORCEMENT_REFUSED",
    "JOB_REQUEUED",
    "JOB_STOPPING",
    "LOOP_FAILED",
    "REPORT_FAILED",
}


class Viewer(Struct, frozen=True):
    """The user who reads a page. An operator may see everything."""

    username: str
    operator: bool = False


def owns(process: ProcessReading, viewer: Viewer) -> bool:
    """Whether it is the viewer's own process or belongs to a job of theirs."""
    return viewer.username in (process.user, process.job_owner)


def redact(snapshot: Snapshot, viewer: Viewer) -> Snapshot:
    """The snapshot as `viewer` may see it; program and user of a process are visible to all."""
    if viewer.operator:
        return snapshot
    visible = tuple(p if owns(p, viewer) else replace(p, command=None) for p in snapshot.processes)
    return replace(snapshot, processes=visible)


def event_text(kind: str, text: str, owner: str, viewer: Viewer) -> str:
    """The text that `viewer` may read; details of faults are for operators and the owner."""
    if viewer.operator or kind not in _WITH_DETAILS or (owner and owner == viewer.username):
        return text
    return text.partition(": ")[0]


# The uid of files and processes whose account another user namespace does not know.
OVERFLOW_UID = 65534
OF_A_JOB = "A job that runs as root or as the account of gpucoord can't log in by its uid."
# Names that a user can have here, as Django allows them.
_USER_NAME = re.compile(r"[\w.@+-]{1,150}")


class InvalidRule(ValueError):
    """The setting is neither of its values; the message says which there are."""


def parse_rule(text: str, *, includes_superusers: bool = False) -> LocalRule:
    """`any`, `known`, `own`, `none` or `group:NAME`. Raises InvalidRule."""
    word, colon, group = text.partition(":")
    if colon and word == LocalAccounts.GROUP and group.strip():
        return LocalRule(
            accounts=LocalAccounts.GROUP,
            group=group.strip(),
            includes_superusers=includes_superusers,
        )
    if not colon and word in set(LocalAccounts) - {LocalAccounts.GROUP}:
        return LocalRule(accounts=LocalAccounts(word), includes_superusers=includes_superusers)
    raise InvalidRule("it must be any, known, own, none or group:NAME")


def default_rule(*, is_root: bool) -> str:
    """Without root all jobs share the service's account, so only that account may log in."""
    return LocalAccounts.ANY if is_root else LocalAccounts.OWN


def refusal(peer: Peer, rule: LocalRule) -> str | None:
    """Why this process may not log in by its account, in a sentence; None: it may.

    With the rule KNOWN, the caller also checks that the account belongs to a user.
    """
    if rule.accounts is LocalAccounts.NONE:
        return "Logging in by OS account is switched off here (local_accounts = none)."
    if peer.problem:
        return f"The process cannot be identified: {peer.problem}."
    if peer.container is not None:
        return f"A process in a container ({peer.container}) can't log in by its uid."
    if not peer.is_in_host_namespace:
        return "A process in another user namespace can't log in by its uid."
    if peer.is_administrator:
        return OF_A_JOB if peer.is_of_job else None
    return _uid_refusal(peer) or _account_refusal(peer, rule)


def _uid_refusal(peer: Peer) -> str | None:
    if peer.uid == OVERFLOW_UID or peer.account == NOBODY:
        return f"The account {NOBODY} can't log in by its uid."
    if peer.uid < FIRST_USER_UID:
        return f"uid {peer.uid} is the account of a service; only uids from 1000 can log in."
    if peer.account is None:
        return f"uid {peer.uid} has no account on this host."
    if not _USER_NAME.fullmatch(peer.account):
        return f"The account name {peer.account[:150]!r} can't be a user name here."
    return None


def _account_refusal(peer: Peer, rule: LocalRule) -> str | None:
    if rule.accounts is LocalAccounts.GROUP and rule.group not in peer.groups:
        return f"Only members of the group {rule.group} can log in by their account."
    if rule.accounts is LocalAccounts.OWN:
        return (
            "gpucoord runs without root here, so only its own account logs in by its uid"
            " (local_accounts = own). Use an API token, or ask an operator."
        )
    return None


# How owners are told apart: six colours for the largest, neutral patterns for all others; pure.

# Numbers of the style sheet's colours; its fourth is too much like its first in the dark.
PALETTE = (0, 1, 2, 3, 5, 6)
COLOURS = len(PALETTE)
# A pattern is a kind of lines, a density and a tone.
KINDS, DENSITIES, TONES = 6, 2, 3
PATTERNS = KINDS * DENSITIES * TONES
# The lines of a pattern's kind in a square of 8.
LINES = (
    "M-2 2L2 -2M0 8L8 0M6 10L10 6",
    "M-2 6L2 10M0 0L8 8M6 -2L10 2",
    "M0 4H8",
    "M4 0V8",
    "M3 3h2v2h-2z",
    "M4 0V8M0 4H8",
)


class Look(Struct, frozen=True):
    """`colour`: 0 to 5; None: neutral with `pattern`."""

    mark: str
    colour: int | None = None
    pattern: int = 0

    @property
    def kind(self) -> int:
        return self.pattern % KINDS

    @property
    def density(self) -> int:
        return self.pattern // KINDS % DENSITIES

    @property
    def side(self) -> int:
        """The size of the pattern's square in pixels."""
        return 5 + 4 * self.density

    @property
    def tone(self) -> int:
        return self.pattern // KINDS // DENSITIES % TONES

    @property
    def css(self) -> str:
        """The classes of the style sheet."""
        if self.colour is not None:
            return f"u{PALETTE[self.colour]}"
        return f"u-n k{self.kind} d{self.density} t{self.tone}"


def looks(sizes: Mapping[str, float]) -> dict[str, Look]:
    """A look for each owner. sizes: their use, by which the largest get the colours."""
    ranked = sorted(sizes, key=lambda name: (-sizes[name], name))
    made: dict[str, Look] = {}
    # By name within each group: a change of ranks within it changes no look.
    for name in sorted(ranked[:COLOURS]) + sorted(ranked[COLOURS:]):
        made[name] = next_look(name, made)
    return made


def next_look(name: str, others: Mapping[str, Look]) -> Look:
    """The look of one more owner: a free colour, else a free pattern."""
    mark = _mark(name, {look.mark for look in others.values()})
    colours = {look.colour for look in others.values()} - {None}
    if len(colours) < COLOURS:
        return Look(mark, colour=_free(name, COLOURS, colours))
    neutral = [look.pattern for look in others.values() if look.colour is None]
    # With more owners than patterns, only the marks differ.
    lap = len(neutral) // PATTERNS * PATTERNS
    return Look(mark, pattern=_free(name, PATTERNS, set(neutral[lap:])))


def _free(name: str, count: int, taken: Iterable[int | None]) -> int:
    """The owner's own number, or the next one that is free."""
    first, used = user_number(name) % count, set(taken)
    return next(n % count for n in range(first, first + count) if n % count not in used)


def _mark(name: str, taken: Iterable[str]) -> str:
    used = set(taken)
    return next(mark for mark in _marks(name) if mark not in used)


def _marks(name: str) -> Iterator[str]:
    """Initials first, then any other pair, then longer ones."""
    first = (name[:1] or "?").lower()
    for letter in (*name[1:].lower(), *digits, *ascii_lowercase):
        if letter.isalnum():
            yield first + letter
    number = 10
    while True:
        yield f"{first}{number}"
        number += 1
