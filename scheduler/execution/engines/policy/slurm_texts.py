"""Policy: the texts of Slurm's commands -> facts. Unreadable lines are counted, never fatal.

Users choose texts that appear in answers: comments and job names, even with line breaks.
Therefore a line of squeue begins with a mark that users cannot know, has \x1f between its fields,
and ends with the comment. Of a job's description, only the part between such texts counts.

Policy: the tier of Slurm's reasons to wait. The words stay those of Slurm.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from itertools import islice

from scheduler.execution.engines.facts import (
    Allocation,
    NodeReport,
    TaskList,
    TaskReport,
    TaskState,
)
from scheduler.facts.blockers import Tier

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
