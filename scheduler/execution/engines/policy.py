"""Policy: requests to other engines, the states of their tasks, and the texts of Slurm.

Unreadable lines of Slurm's commands are counted, never fatal.

Users choose texts that appear in answers: comments and job names, even with line breaks.
Therefore a line of squeue begins with a mark that users cannot know, has \x1f between its fields,
and ends with the comment. Of a job's description, only the part between such texts counts.

Policy: the tier of Slurm's reasons to wait. The words stay those of Slurm.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from itertools import islice

from msgspec import Struct, field

from monitor.facts.accounts import is_person
from monitor.owners.policy import job_cgroup_of, session_uid
from scheduler.execution.engines.facts import (
    Allocation,
    Capabilities,
    NodeReport,
    TaskList,
    TaskReport,
    TaskState,
)
from scheduler.facts.blockers import Tier

# The parts of a job's request that another engine can take over, and those that it cannot.
#
# Policy: what follows from the state of a task that another engine has.
#
# The files of the attempt take precedence over the engine's word: they say whether the job has
# run and how it ended. The claim file decides whether a nonce may still run, so handing a job
# over again never runs it twice.


# Variables of sbatch that a user may set in the environment of a job.
VARIABLES = (
    "SBATCH_ACCOUNT",
    "SBATCH_CONSTRAINT",
    "SBATCH_PARTITION",
    "SBATCH_QOS",
    "SBATCH_RESERVATION",
)
_VALUE = re.compile(r"[\w.,:&|*\[\]()+-]{1,200}")
# Slurm's --nice; a user may lower a priority there, but not raise it.
_NICENESS = {1: 1000, 2: 100}


class EngineRules(Struct, frozen=True, kw_only=True):
    """Settings of the engine. gpu_types: model as in gpucoord -> type as in gres.conf."""

    options: tuple[str, ...] = ()
    gpu_types: Mapping[str, str] = field(default_factory=dict)
    grace_s: float = 10.0


def niceness_of(priority: int) -> int:
    return _NICENESS.get(priority, 0)


def variables_of(env: Mapping[str, str]) -> dict[str, str]:
    """Those of a job's variables that choose its account, QOS or partition."""
    return {
        name: env[name]
        for name in VARIABLES
        if isinstance(env.get(name), str) and _VALUE.fullmatch(env[name])
    }


def problem_of(
    gpu_model: str,
    capability: str,
    power: float | None,
    gpu_uuid: str,
    share_pct: int | None,
    *,
    is_service: bool,
    rules: EngineRules,
) -> str:
    """Why the engine cannot take a job with these constraints; "" = it can."""
    if is_service:
        return "Model services run on GPUs that gpucoord itself allocates."
    if gpu_model and gpu_model not in rules.gpu_types:
        return (
            f"No GPU type of Slurm is configured for {gpu_model}."
            " An operator can add it to slurm_gpu_types."
        )
    constraints = {
        "a compute capability": capability,
        "a power rank": power,
        "a GPU by its UUID": gpu_uuid,
        "a part of a GPU's time": share_pct,
    }
    wrong = [words for words, value in constraints.items() if value]
    return f"Slurm cannot allocate GPUs by {' or '.join(wrong)}." if wrong else ""


# The decisions that an engine takes instead of gpucoord, in words.

_WORDS = (
    ("order", "order"),
    ("fair_share", "fair share"),
    ("quotas", "quotas"),
    ("windows", "time windows"),
    ("preemption", "preemption"),
)


def decided(capabilities: Capabilities) -> str:
    """As "order, fair share and quotas"; "" = gpucoord decides all of them."""
    words = [word for name, word in _WORDS if getattr(capabilities, name)]
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))


def sentence(title: str, host: str, capabilities: Capabilities) -> str:
    """About the jobs that a host hands to this engine; "" = nothing is to be said."""
    words = decided(capabilities)
    if not words:
        return ""
    return (
        f"{title} decides {words} of the jobs that {host} hands to it."
        " The quotas, shares and time windows of gpucoord do not apply to them."
    )


# Whether a process that a job of another engine reports as its own belongs to it.
#
# The account of the job can write the report. Therefore only what the kernel says of the process
# counts: its account, and its cgroup where the engine uses cgroups.


class ReportedProcess(Struct, frozen=True, kw_only=True):
    """A process as the kernel of its node describes it.

    uid: its real uid, None = unknown. cgroup: text of /proc/PID/cgroup. has_job_cgroup: the engine
    has made a cgroup for the job on this node.
    """

    uid: int | None
    cgroup: str
    has_job_cgroup: bool


def refusal_of(process: ReportedProcess, uid: int, ref: str) -> str:
    """Why it is not a process of Slurm's job `ref`, which runs as `uid`; "" = it can be one."""
    if process.uid is None:
        return "its account cannot be read"
    if process.uid != uid:
        return f"it runs as uid {process.uid}, and the job as uid {uid}"
    # Users can make cgroups of any name in their own part of the tree.
    lines = [line for line in process.cgroup.splitlines() if session_uid(line) is None]
    paths = [path for path in map(job_cgroup_of, lines) if path]
    if any(path.endswith(f"/job_{ref}") for path in paths):
        return ""
    if paths:
        return f"it is in the cgroup {paths[0]}, which is not that of Slurm's job {ref}"
    if process.has_job_cgroup:
        return f"it is outside the cgroup of Slurm's job {ref}"
    if is_person(session_uid(process.cgroup) or 0):
        return "it belongs to a login session"
    return ""


# The longest time that a submission may be under way; then a list without it means it is not there.
SUBMIT_SETTLES = timedelta(seconds=30)
# An ended task may show its files a little later on shared storage.
FILES_SETTLE = timedelta(seconds=10)
# A task that never began and is missing in the answers for this long was lost by the engine.
LOST_UNSTARTED = timedelta(seconds=20)
# A task that has begun and is missing this long, without a result, is lost.
LOST_STARTED = timedelta(minutes=10)
REFUSED_AGAIN = timedelta(minutes=1)
STOP_AGAIN = timedelta(seconds=5)


class Claim(StrEnum):
    """The creator of the attempt's `claimed` file."""

    NONE = "none"
    RUNNER = "runner"
    GIVEN_UP = "given up"


class Phase(StrEnum):
    """QUEUED: the job waits. PLACED: the attempt of this task is open. OVER: neither is true."""

    QUEUED = "queued"
    PLACED = "placed"
    OVER = "over"


class TaskView(Struct, frozen=True, kw_only=True):
    """All that is known of a task.

    state: None = the newest answer does not contain it. is_wanted: it is still requested as it was
    submitted. missing_since and ended_since: by the engine's answers; None = it is listed, or it
    has not ended. runner_alive: on this host; None = it runs elsewhere, or did not start.
    """

    phase: Phase
    claim: Claim
    ref: str = ""
    state: TaskState | None = None
    is_wanted: bool = True
    is_started: bool = False
    is_recorded: bool = False
    has_result: bool = False
    runner_alive: bool | None = None
    stop_requested: bool = False
    yield_requested: bool = False
    refused: bool = False
    tried_at: datetime | None = None
    answered_at: datetime | None = None
    missing_since: datetime | None = None
    ended_since: datetime | None = None


class TaskAction(StrEnum):
    """The next action for a task.

    SUBMIT       hand it to the engine (again: with the same nonce)
    GIVE_UP      claim its attempt, so that no runner can start it any more
    STOP         tell the engine to end it
    ADOPT        its runner has begun: create the attempt
    RECORD       store the identity of its processes
    YIELD        tell the engine to ask it to leave
    END          it has a result: store it
    LOST         it has begun, and how it ended is unknown
    UNSTARTED    it has ended in the engine without having begun
    CLOSE        nothing is left to do
    """

    NONE = "none"
    SUBMIT = "submit"
    GIVE_UP = "give up"
    STOP = "stop"
    ADOPT = "adopt"
    RECORD = "record"
    YIELD = "yield"
    END = "end"
    LOST = "lost"
    UNSTARTED = "unstarted"
    CLOSE = "close"


def next_task_action(task: TaskView, now: datetime) -> TaskAction:
    """The action that is due now."""
    if task.phase is Phase.PLACED:
        return _of_placed(task, now)
    if task.claim is Claim.RUNNER:
        if task.phase is Phase.QUEUED:
            return TaskAction.ADOPT
        return TaskAction.CLOSE if _is_over(task) or task.has_result else TaskAction.STOP
    if task.claim is Claim.GIVEN_UP:
        # The end of a task that was withdrawn says nothing about its job.
        if task.phase is Phase.QUEUED and task.ended_since is not None and task.is_wanted:
            return TaskAction.UNSTARTED
        return TaskAction.CLOSE if _is_over(task) else TaskAction.STOP
    if task.phase is Phase.OVER or not task.is_wanted:
        return TaskAction.CLOSE if task.tried_at is None else TaskAction.GIVE_UP
    if not task.ref:
        return _of_unacknowledged(task, now)
    is_requeued = task.state is TaskState.WAITING
    if _has_passed(task.ended_since, FILES_SETTLE, now) and not is_requeued:
        return TaskAction.GIVE_UP
    if _has_passed(task.missing_since, LOST_UNSTARTED, now):
        return TaskAction.GIVE_UP
    return TaskAction.NONE


def _of_unacknowledged(task: TaskView, now: datetime) -> TaskAction:
    """Submit again only after an answer that would contain an earlier submission."""
    if task.tried_at is None:
        return TaskAction.SUBMIT
    if task.refused:
        due = now - task.tried_at >= REFUSED_AGAIN
        return TaskAction.SUBMIT if due else TaskAction.NONE
    settled_at = task.tried_at + SUBMIT_SETTLES
    has_looked = task.answered_at is not None and task.answered_at >= settled_at
    return TaskAction.SUBMIT if has_looked and task.state is None else TaskAction.NONE


def _of_placed(task: TaskView, now: datetime) -> TaskAction:
    if task.has_result:
        return TaskAction.END
    if task.is_started and not task.is_recorded:
        return TaskAction.RECORD
    if _has_passed(task.ended_since, FILES_SETTLE, now) and task.runner_alive is not True:
        return TaskAction.LOST
    if _has_passed(task.missing_since, LOST_STARTED, now) and task.runner_alive is not True:
        return TaskAction.LOST
    if task.stop_requested:
        return TaskAction.STOP
    return TaskAction.YIELD if task.yield_requested else TaskAction.NONE


def _is_over(task: TaskView) -> bool:
    """Whether the engine has no such task any more, or never got it."""
    return task.ended_since is not None or task.missing_since is not None


def _has_passed(since: datetime | None, wait: timedelta, now: datetime) -> bool:
    return since is not None and now - since >= wait


SEPARATOR = "\x1f"
# Job, state, reason, uid, nodes, batch host, start, comment.
SQUEUE_FORMAT = SEPARATOR.join(("%i", "%T", "%r", "%U", "%N", "%B", "%S", "%k"))
SQUEUE_FIELDS = 8
SACCT_FIELDS = "JobIDRaw,State,ExitCode,Comment"
MOST_LINES, LONGEST_LINE, LONGEST_WORD = 200_000, 20_000, 200
LONGEST_JOB, MOST_NAMES = 200_000, 10_000
COMMENT = "gpucoord:"
# As long as the column of a task takes.
NONCE = re.compile(r"gpucoord:([0-9a-f]{8,32})")
_NUMBER = re.compile(r"[0-9]{1,18}")
EMPTY = frozenset({"", "(null)", "N/A", "n/a", "None", "NONE", "none", "Unknown", "UNKNOWN"})
WAITING = frozenset(
    {
        "PENDING",
        "REQUEUED",
        "REQUEUE_HOLD",
        "REQUEUE_FED",
        "SPECIAL_EXIT",
        "RESV_DEL_HOLD",
    }
)
RUNNING = frozenset(
    {
        "RUNNING",
        "CONFIGURING",
        "COMPLETING",
        "SUSPENDED",
        "STOPPED",
        "SIGNALING",
        "STAGE_OUT",
        "RESIZING",
        "POWER_UP_NODE",
        "EXPEDITING",
    }
)
ENDED = frozenset(
    {
        "COMPLETED",
        "FAILED",
        "CANCELLED",
        "TIMEOUT",
        "NODE_FAIL",
        "OUT_OF_MEMORY",
        "PREEMPTED",
        "BOOT_FAIL",
        "DEADLINE",
        "REVOKED",
        "LAUNCH_FAILED",
        "RECONFIG_FAIL",
    }
)


def state_of(word: str) -> TaskState:
    """A state that a newer Slurm has is unknown. "CANCELLED by 1000" is CANCELLED."""
    first = word.split(" ", 1)[0].rstrip("+")
    if first in WAITING:
        return TaskState.WAITING
    if first in RUNNING:
        return TaskState.RUNNING
    return TaskState.ENDED if first in ENDED else TaskState.UNKNOWN


def _lines(text: str) -> Iterator[str]:
    return islice((line for line in text.split("\n") if line.strip()), MOST_LINES)


def squeue(text: str, mark: str = "") -> TaskList:
    """The answer to `squeue -h -a -t all` in SQUEUE_FORMAT, with `mark` before each line.

    A list that is too long is no answer, as the tasks that are not read would be missing.
    """
    tasks, unread = [], 0
    if text.count("\n") > MOST_LINES:
        return TaskList(problem=f"squeue lists more than {MOST_LINES} jobs.")
    for line in _lines(text):
        task = _task(line.removeprefix(mark)) if line.startswith(mark) else None
        if task is None:
            unread += 1
        else:
            tasks.append(task)
    return TaskList(tuple(tasks), unread=unread)


def _task(line: str) -> TaskReport | None:
    parts = line.split(SEPARATOR, SQUEUE_FIELDS - 1)
    if len(parts) != SQUEUE_FIELDS or len(line) > LONGEST_LINE:
        return None
    ref, word, reason, uid, nodes, host, start, comment = parts
    if not ref[:1].isdigit():
        return None
    state = state_of(word)
    # Tasks of gpucoord are never parts of an array.
    is_single = _NUMBER.fullmatch(ref) is not None
    return TaskReport(
        ref=ref[:LONGEST_WORD],
        state=state,
        word=word[:LONGEST_WORD],
        reason=cleaned(reason),
        nonce=nonce_in(comment) if is_single else "",
        uid=int(uid) if _NUMBER.fullmatch(uid) else None,
        node=_name(host) or first_node(nodes),
        nodes=_name(nodes),
        expected_start=moment(start) if state is TaskState.WAITING else None,
    )


def nonce_in(comment: str) -> str:
    """The nonce of a ticket, "" in the comment of another program."""
    match = NONCE.fullmatch(comment.strip())
    return match[1] if match else ""


def cleaned(text: str) -> str:
    """A reason in Slurm's words; "" where Slurm writes that there is none."""
    bare = " ".join(text.split())
    return "" if bare in EMPTY else bare[:LONGEST_WORD]


def _name(text: str) -> str:
    bare = text.strip()
    return "" if bare in EMPTY else bare[:LONGEST_WORD]


def first_node(nodes: str) -> str:
    """`gpu[03-05,9],fat1` -> gpu03."""
    match = re.match(r"([^\[,\s]+)(?:\[([^\],-]+))?", nodes.strip())
    if match is None or match[0] in EMPTY:
        return ""
    return f"{match[1]}{match[2] or ''}"[:LONGEST_WORD]


def moment(text: str) -> datetime | None:
    """A time of Slurm, in UTC, as the commands are run with TZ=UTC."""
    try:
        return datetime.strptime(text.strip(), "%Y-%m-%dT%H:%M:%S").replace(tzinfo=UTC)
    except ValueError:
        return None


def sbatch(text: str) -> str:
    """The number in the answer to `sbatch --parsable`: `12` or `12;cluster`; "" = there is none."""
    for line in reversed(text.strip().split("\n")):
        match = re.fullmatch(r"(\d{1,18})(?:;[\w.-]+)?", line.strip())
        if match:
            return match[1]
    return ""


_GPU_COUNT = re.compile(r"(?:^|,)gres/gpu=(\d{1,6})(?=,|$)")
_TRES = re.compile(r"^[ \t]*(?:AllocTRES|TRES)=(\S*)", re.MULTILINE)
_NODE_GRES = re.compile(r"^[ \t]*Nodes=(\S+) CPU_IDs=\S* Mem=\S* GRES=(\S*)", re.MULTILINE)
_INDICES = re.compile(r"gpu(?::[^(,:]*){0,2}\(IDX:([0-9,-]+)\)")
_EXIT = re.compile(r"\bExitCode=(\d{1,3}):(\d{1,3})\b")
_WORD = re.compile(r"^[ \t]*JobState=(\S+) Reason=(.*?) Dependency=", re.MULTILINE)
# The job's name is above this part, its comment, command and folders are below.
_STATE_LINE = re.compile(r"^[ \t]*JobState=", re.MULTILINE)
_USER_TEXTS = re.compile(r"^[ \t]*(?:MinCPUsNode|Features|Comment|Command|WorkDir)=", re.MULTILINE)


def job(text: str) -> Allocation:
    """The answer to `scontrol show job ID -d`; empty if a user's text imitates parts of it."""
    begins = [match.start() for match in _STATE_LINE.finditer(text[:LONGEST_JOB])]
    if len(begins) != 1:
        return Allocation()
    end = _USER_TEXTS.search(text, begins[0])
    text = text[begins[0] : end.start() if end else LONGEST_JOB]
    tres, exited, word = _TRES.search(text), _EXIT.search(text), _WORD.search(text)
    indices: dict[str, tuple[int, ...]] = {}
    for nodes, gres in _NODE_GRES.findall(text):
        numbers = _numbers(gres)
        indices |= dict.fromkeys(node_names(nodes), numbers) if numbers else {}
    count = gpus_in(tres[1]) if tres else None
    if count is None and indices:
        count = sum(map(len, indices.values()))
    return Allocation(
        gpus=count,
        gpu_indices=indices,
        exit_code=int(exited[1]) if exited else None,
        signal=int(exited[2]) if exited else None,
        word=word[1] if word else "",
        reason=cleaned(word[2]) if word else "",
    )


def gpus_in(tres: str) -> int | None:
    """The number in `cpu=4,gres/gpu=2`; None: Slurm does not count GPUs as TRES."""
    match = _GPU_COUNT.search(tres)
    return int(match[1]) if match else None


def _numbers(gres: str) -> tuple[int, ...]:
    """`gpu:a100:3(IDX:0-1,3)` -> 0, 1, 3."""
    numbers: list[int] = []
    for spans in _INDICES.findall(gres):
        for span in spans.split(","):
            low, _, high = span.partition("-")
            is_short = len(low) <= 6 and len(high) <= 6
            if is_short and low.isdecimal() and (not high or high.isdecimal()):
                numbers += range(int(low), min(int(high or low), int(low) + 1024) + 1)
    return tuple(numbers)


def node_names(nodes: str) -> list[str]:
    """`gpu[03-05],fat1` -> gpu03, gpu04, gpu05, fat1."""
    names: list[str] = []
    for prefix, spans, suffix in re.findall(r"([^\[,]+)(?:\[([^\[\]]*)\])?([^,\[]*)", nodes):
        if not spans:
            names.append(prefix)
            continue
        for span in spans.split(","):
            low, _, high = span.partition("-")
            if not low.isdecimal() or (high and not high.isdecimal()):
                continue
            if len(low) > 18 or len(high) > 18:
                continue
            last = min(int(high or low), int(low) + MOST_NAMES - len(names))
            names += [f"{prefix}{n:0{len(low)}d}{suffix}" for n in range(int(low), last + 1)]
    return names[:MOST_NAMES]


def _gres_count(gres: str) -> int:
    """`gpu:a100:4(S:0-1),shard:8` -> 4."""
    counts = re.findall(r"(?:^|,)gpu(?::[^:,(]+)?:(\d{1,6})", gres)
    return sum(map(int, counts))


_NODE = re.compile(r"^NodeName=(\S+)", re.MULTILINE)
_CONFIGURED = re.compile(r"\bCfgTRES=(\S*)")
_ALLOCATED = re.compile(r"\bAllocTRES=(\S*)")
_STATE = re.compile(r"\bState=(\S+)")
_GRES = re.compile(r"\bGres=(\S+)")
_REASON = re.compile(r"\bReason=(.*)")


def nodes(text: str) -> list[NodeReport]:
    """The answer to `scontrol show node -o`: one line for each node."""
    nodes = []
    for line in _lines(text):
        name, state, gres = _NODE.search(line), _STATE.search(line), _GRES.search(line)
        if name is None or len(line) > LONGEST_LINE:
            continue
        has = _CONFIGURED.search(line)
        gpus = gpus_in(has[1]) if has else None
        counted = gpus is not None
        used = _ALLOCATED.search(line)
        taken = (gpus_in(used[1]) or 0) if used and counted else None
        why = _REASON.search(line)
        nodes.append(
            NodeReport(
                name=name[1][:LONGEST_WORD],
                word=state[1][:LONGEST_WORD] if state else "",
                gpus=gpus if counted else _gres_count(gres[1]) if gres else None,
                gpus_allocated=taken,
                reason=cleaned(_without_author(why[1])) if why else "",
            )
        )
    return nodes


def _without_author(reason: str) -> str:
    """`Drained [root@2026-03-02T12:00:00]` -> Drained."""
    text, bracket, _ = reason.rpartition(" [")
    return text if bracket and reason.rstrip().endswith("]") else reason


def sacct(text: str) -> Mapping[str, Allocation]:
    """The answer to `sacct -n -P -X -o SACCT_FIELDS`, by nonce."""
    ends = {}
    for line in _lines(text):
        parts = line.split("|", 3)
        nonce = nonce_in(parts[3]) if len(parts) == 4 else ""
        code = re.fullmatch(r"(\d{1,3}):(\d{1,3})", parts[2]) if nonce else None
        if code:
            word = parts[1].split(" ", 1)[0]
            ends[nonce] = Allocation(exit_code=int(code[1]), signal=int(code[2]), word=word)
    return ends


# Beginnings of Slurm's reasons (job_reason_codes), the first that fits counts.
_TIERS: tuple[tuple[Tier, tuple[str, ...]], ...] = (
    (
        Tier.PERSON,
        (
            "JobHeld",
            "JobHoldMaxRequeue",
            "launch failed",
            "launch_failed",
            "job requeued in held state",
            "InvalidAccount",
            "InvalidQOS",
            "BadConstraints",
            "DependencyNeverSatisfied",
            "PartitionNodeLimit",
            "PartitionTimeLimit",
            "QOSNotAllowed",
            "QOSTimeLimit",
            "AccountNotAllowed",
            "AccountingPolicy",
            "FailedLaunch",
            "JobLaunchFailure",
        ),
    ),
    (
        Tier.NOT_YET,
        (
            "BeginTime",
            "Dependency",
            "JobArrayTaskLimit",
            "Cleaning",
            "DeadLine",
            "Reservation",
            "Prolog",
            "SchedDefer",
        ),
    ),
    (Tier.MY_LIMITS, ("QOS", "Assoc", "MaxJobs", "MaxMemPerLimit")),
    (
        Tier.MACHINE,
        (
            "NodeDown",
            "ReqNodeNotAvail",
            "Nodes required for job are DOWN",
            "NodesRequired",
            "PartitionDown",
            "PartitionInactive",
            "FrontEndDown",
            "Licenses",
            "BurstBuffer",
            "SystemFailure",
            "PartitionConfig",
            "NoneAvailable",
        ),
    ),
)
# Other users' jobs, or the order of the queue; also a reason that is new to us.
_OTHERS = Tier.CONTENTION


def is_held(reason: str) -> bool:
    """Whether Slurm does not start the task until it is released."""
    return reason.startswith("JobHeld")


def tier_of(reason: str) -> Tier:
    """The tier of a reason. A reason that is not listed is taken for contention."""
    for tier, beginnings in _TIERS:
        if reason.startswith(beginnings):
            return tier
    return _OTHERS


_AWAY = (
    "Unable to contact slurm controller",
    "Socket timed out",
    "Connection refused",
    "Communication connection failure",
    "Zero Bytes were transmitted",
    "Slurm backup controller in standby mode",
    "Slurm temporarily unable to accept job",
    "Transport endpoint is not connected",
    "Protocol authentication error",
    "Munge encode failed",
    "Insane message length",
    "No route to host",
    "Resource temporarily unavailable",
    "Unable to establish controller machine",
    "Unexpected message received",
    "Message receive failure",
    "Message send failure",
    "DNS SRV lookup failed",
    "Could not establish a configuration source",
)


def is_away(text: str) -> bool:
    """Whether an error says that slurmctld or munge does not answer, not that it refuses."""
    return any(words in text for words in _AWAY)


def is_gone(text: str) -> bool:
    """Whether slurmctld answered that it has no such job."""
    return "Invalid job id specified" in text


def is_over(text: str) -> bool:
    """Whether slurmctld answered that the job has ended."""
    return "already completing or completed" in text or is_gone(text)
