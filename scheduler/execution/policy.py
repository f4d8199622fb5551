"""Policy: the next action for an attempt, limits of a job's processes, and their priority."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from msgspec import Struct

from monitor.facts.formats import GIB
from monitor.facts.readings import HostReading
from monitor.facts.thresholds import percent, threshold
from scheduler.facts.jobs import Ends, JobState, NewJob, Outcome, Refusal, RunTime
from scheduler.facts.units import size

# The minimum that a job needs to run.
MIN_CPUS, MIN_BYTES = 0.01, 16 * 1024**2
START_TIMEOUT = timedelta(seconds=30)
MAX_STARTS = 5
# After more refusals in a row than this, the job is paused with an exponential back-off.
REFUSALS_AT_ONCE = 2
FIRST_PAUSE, LONGEST_PAUSE = timedelta(seconds=10), timedelta(minutes=5)
# A directory of accounts that is away for longer fails the jobs that should have started.
LONGEST_UNKNOWN_ACCOUNT = timedelta(hours=6)


# %: a process of a job gets at most this share of the host's memory, beside the threshold in GiB.
PROCESS_MEMORY_PCT = 80.0
# Processes and threads of a job, which protects the host from fork bombs.
PIDS = 32_768
# Seconds of a period: a job limited to 30 % of GPU time runs for 0.3 of it.
PERIOD_S = 1.0
# Nice value of jobs while the host is busy; 19 is the lowest priority.
NICE = 10
# %: the host is busy from the first CPU use on, or from this time on in which some task waited for
# I/O (PSI some). It is quiet again below the second CPU use and half of that time.
BUSY_CPU_PCT, QUIET_CPU_PCT, BUSY_IO_PCT = 90.0, 75.0, 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundsPolicy:
    """Resource limits of jobs, where the host supports them."""

    # fmt: off
    cgroup: bool = threshold(True, "Use cgroups",
        "Enables limits, freezing and reliable termination. Without cgroups, a job is its process "
        "tree.")
    cpus: float | None = threshold(None, "CPUs per job", ge=0.01,
        help="Limit for all processes of a job together. A job may request less.")
    memory_gib: float | None = threshold(None, "Memory per job", unit="GiB", ge=0.05,
        help="Host memory. A job that exceeds it is killed. A job may request less.")
    default_memory_pct: float = percent(80.0, "Memory of a job that declares none",
        "Of the memory of the host. A job near its limit is asked to save its work. Model services "
        "are exempt. 100 = no such limit.")
    process_memory_gib: float | None = threshold(80.0, "Memory of a process", unit="GiB", ge=0.05,
        help="Host memory of each process of a job; the lower of this value and 80 % of the "
             "host. A job that declares more may have it in one process. The job is warned, asked "
             "to save its work, and then ended. Model services are exempt.")
    log_mib: int = threshold(1024, "Maximum log size", unit="MiB", ge=0, le=1_048_576,
        help="Per attempt. The job continues, but only the beginning and the end of its output "
             "are kept. 0 = no limit.")
    hide_gpus: bool = threshold(True, "Hide other GPUs",
        "A job cannot open GPUs that are not allocated to it, whatever CUDA_VISIBLE_DEVICES says.")
    ports: int = threshold(8, "Ports per job", ge=0, le=256,
        help="TCP ports that no other running job of the host has. 0 = jobs get none.")
    first_port: int = threshold(20_000, "First port of jobs", ge=1024, le=65_535,
        help="Ports that the kernel uses for outgoing connections are left out.")
    last_port: int = threshold(29_999, "Last port of jobs", ge=1024, le=65_535)
    # fmt: on

    def conflicts(self) -> dict[str, str]:
        if self.last_port - self.first_port + 1 < self.ports:
            return {"last_port": "the range must have room for the ports of a job"}
        return {}

    @property
    def memory_bytes(self) -> int | None:
        return None if self.memory_gib is None else round(self.memory_gib * GIB)

    def undeclared_bytes(self, host_bytes: int | None) -> int | None:
        """The limit of a job that declares no memory; None = no limit.

        host_bytes: memory of the host; None = unknown.
        """
        return _lower_of(None, self.default_memory_pct, host_bytes)

    def process_bytes(self, host_bytes: int | None) -> int | None:
        """The limit of a process of a job that does not declare more; None = no limit."""
        return _lower_of(self.process_memory_gib, PROCESS_MEMORY_PCT, host_bytes)


def port_blocks(policy: BoundsPolicy, taken: Sequence[range], *, start: int) -> Iterator[range]:
    """The blocks of ports that overlap with none of those taken, from the `start`-th on, around."""
    count = (policy.last_port - policy.first_port + 1) // policy.ports
    for number in range(count):
        first = policy.first_port + (start + number) % count * policy.ports
        block = range(first, first + policy.ports)
        if all(block.stop <= other.start or other.stop <= block.start for other in taken):
            yield block


def _lower_of(gib: float | None, pct: float, host_bytes: int | None) -> int | None:
    share = host_bytes * pct / 100 if host_bytes is not None and pct < 100 else None
    limit = lower_limit(None if gib is None else gib * GIB, share)
    return None if limit is None else int(limit)


def refusals(new: NewJob, policy: BoundsPolicy, hosts: Sequence[HostReading]) -> list[Refusal]:
    """More CPUs or memory than a job may have, or than any host has; too little to run at all."""
    cpus = _most(policy.cpus, [host.cpu_count for host in hosts])
    memory = _most(policy.memory_bytes, [host.memory_total_bytes for host in hosts])
    problems = []
    if (requested := new.cpus) is not None and requested < MIN_CPUS:
        problems.append(Refusal(field="cpus", text=f"Nothing runs with {requested:g} CPUs."))
    elif requested is not None and cpus is not None and requested > cpus:
        text = f"You ask for {requested:g} CPUs; a job gets at most {cpus:g} here."
        problems.append(Refusal(field="cpus", text=text))
    if (wants := new.memory_bytes) is not None and wants < MIN_BYTES:
        text = "Nothing runs with so little host memory; write it like 16GiB."
        problems.append(Refusal(field="memory", text=text))
    elif wants is not None and memory is not None and wants > memory:
        most = f"a job gets at most {size(int(memory))} here"
        text = f"You ask for {size(wants)} of host memory; {most}."
        problems.append(Refusal(field="memory", text=text))
    return problems


def lower_limit(requested: float | None, most: float | None) -> float | None:
    """The lower of two limits; None = no limit."""
    return min((value for value in (requested, most) if value is not None), default=None)


def _most(limit: float | None, hosts: Sequence[float | None]) -> float | None:
    """The maximum on the largest host; None = unknown."""
    values = [value for value in hosts if value is not None]
    largest = max(values) if values and len(values) == len(hosts) else None
    return lower_limit(largest, limit)


def is_busy(cpu_pct: float | None, io_pct: float | None, *, was_busy: bool) -> bool:
    """Whether background jobs get a higher nice value. Unknown values change nothing."""
    busy = [
        cpu_pct is not None and cpu_pct >= BUSY_CPU_PCT,
        io_pct is not None and io_pct >= BUSY_IO_PCT,
    ]
    quiet = [
        cpu_pct is not None and cpu_pct < QUIET_CPU_PCT,
        io_pct is None or io_pct < BUSY_IO_PCT / 2,
    ]
    return any(busy) or (was_busy and not all(quiet))


class Claimant(StrEnum):
    """The creator of the attempt's `claimed` file: a runner, or the executor to give it up."""

    UNCLAIMED = "unclaimed"
    RUNNER = "runner"
    GIVEN_UP = "given up"


class AttemptState(Struct, frozen=True, kw_only=True):
    """State of an attempt. `is_recorded`: its row has the identity of its processes."""

    state: JobState
    placed_at: datetime
    same_boot: bool
    claimant: Claimant
    runner_alive: bool
    is_started: bool
    is_recorded: bool
    has_result: bool
    yield_requested: bool = False
    yield_withdrawn: bool = False


class Action(StrEnum):
    """The next action for an attempt.

    NONE        wait
    START       request a runner (again)
    RECORD      store the identity of its processes
    STOP        tell the runner to end the job
    YIELD       tell the runner that the job must leave its GPUs
    STAY        tell the runner that the yield request is withdrawn
    END         it has a result: store it
    GIVE_UP     claim it, so that no runner can start it any more
    NEVER_RAN   it was given up, or its runner died before the job started
    ABANDONED   its runner and guardian died while the job ran
    RESTARTED   the machine restarted
    """

    NONE = "none"
    START = "start"
    RECORD = "record"
    STOP = "stop"
    YIELD = "yield"
    STAY = "stay"
    END = "end"
    GIVE_UP = "give up"
    NEVER_RAN = "never ran"
    ABANDONED = "abandoned"
    RESTARTED = "restarted"


# These actions may free GPUs.
ENDINGS = frozenset(
    {Action.END, Action.GIVE_UP, Action.NEVER_RAN, Action.ABANDONED, Action.RESTARTED}
)


def next_action(attempt: AttemptState, now: datetime) -> Action:
    """The action that is due now. A result takes precedence over everything else."""
    if attempt.has_result:
        return Action.END
    if not attempt.same_boot:
        return Action.RESTARTED
    if attempt.claimant is Claimant.GIVEN_UP:
        return Action.NEVER_RAN
    if attempt.claimant is Claimant.UNCLAIMED:
        is_late = now - attempt.placed_at > START_TIMEOUT
        is_unwanted = attempt.yield_requested or attempt.state is JobState.STOPPING
        return Action.GIVE_UP if is_late or is_unwanted else Action.START
    if not attempt.runner_alive:
        return Action.ABANDONED if attempt.is_started else Action.NEVER_RAN
    if attempt.is_started and not attempt.is_recorded:
        return Action.RECORD
    if attempt.state is JobState.STOPPING:
        return Action.STOP
    if attempt.yield_requested:
        return Action.YIELD
    return Action.STAY if attempt.yield_withdrawn else Action.NONE


def outcome_of(
    *, exit_code: int | None, stopped: str | None, cancel_requested: bool
) -> tuple[Outcome, str]:
    """The outcome, and a sentence if the exit code does not explain it."""
    if stopped == "time_limit":
        return Outcome.TIMED_OUT, "The job ran into its time limit."
    if stopped and cancel_requested:
        return Outcome.CANCELLED, ""
    if stopped in ("yield", "memory"):
        # Exit code 0 after SIGTERM does not count as success.
        return Outcome.FAILED, ""
    if stopped == "asked":
        return Outcome.FAILED, "The job was stopped from outside gpucoord, as by a shutdown."
    return (Outcome.SUCCEEDED if exit_code == 0 else Outcome.FAILED), ""


def backoff_after(refusals: int) -> timedelta | None:
    """Back-off after this many refusals in a row; None = retry at once, on other GPUs.

    The planner avoids a locked GPU, so continued refusals are a fault of the machine.
    """
    excess = refusals - REFUSALS_AT_ONCE
    return None if excess <= 0 else pause_after(excess)


def pause_after(failures: int) -> timedelta:
    """The exponential back-off after this many failures in a row, at least one."""
    return min(LONGEST_PAUSE, FIRST_PAUSE * (1 << min(failures - 1, 16)))


# The progress that a job reports, and when it is expected to end.
#
# A job reports by the file GPUCOORD_PROGRESS_FILE, with the text `0.45 message`, or by a line of
# its log, `::gpucoord progress 0.45 message`. `45%` and `3/125` are numbers too. Else a counter
# of epochs in its log counts, such as `Epoch 9/20`, with the bar of tqdm behind it.


LONGEST_MESSAGE = 200
# Of the file, and of the end of the log, in bytes.
LARGEST_FILE, LOG_TAIL = 4096, 65_536
# Progress is stored at most this often, and a smaller change of it later.
STORED_EVERY = timedelta(seconds=2)
SMALL_CHANGE, SMALL_CHANGES_EVERY = 0.01, timedelta(seconds=15)
# An expected end is stored again when it has moved by this part of the remaining time.
MOVED_PART, MOVED_LEAST = 0.05, timedelta(seconds=5)
# How much longer than by its progress a job takes in one of ten cases.
SLOWER_PART = 0.3
# Below this, a part of the run time says little about the rest.
LEAST_FRACTION = 0.005
_LINE = re.compile(rb"^::gpucoord progress[ \t]+([^\r\n]*)", re.MULTILINE)
_EPOCH = re.compile(
    rb"(?:^|[\r\n])[^\r\n]{0,80}?\bepoch[ \t:]{0,4}[\[(]?[ \t]{0,4}"
    rb"(\d{1,6})[ \t]{0,4}(?:/|of)[ \t]{0,4}(\d{1,6})\b[\])]?([^\r\n]{0,200})",
    re.IGNORECASE,
)
_BAR = re.compile(rb":[ \t]{0,4}(\d{1,3})%\|")
_NUMBER = re.compile(r"(\d{1,9}(?:\.\d{0,9})?)\s*(?:(%)|/\s*(\d{1,9}))?(?=\s|$)")


class Progress(Struct, frozen=True):
    """fraction: 0 to 1."""

    fraction: float
    message: str = ""


def parse(text: str) -> Progress | None:
    """`0.45 message`, `45 % message` or `3/125 message`; None: it does not begin with a number."""
    line = text.strip().partition("\n")[0].strip()
    match = _NUMBER.match(line)
    if match is None:
        return None
    number, percent, whole = match.groups()
    divisor = 100.0 if percent else float(whole or 1)
    if not divisor:
        return None
    fraction = min(1.0, float(number) / divisor)
    return Progress(fraction, _shown(line[match.end() :]))


def _shown(message: str) -> str:
    return " ".join("".join(c if c.isprintable() else " " for c in message).split())[
        :LONGEST_MESSAGE
    ]


def in_log(tail: bytes) -> Progress | None:
    """The newest progress in the end of a log; None: no line reports any."""
    for line in reversed(_LINE.findall(tail)):
        progress = parse(line.decode("utf-8", "replace"))
        if progress is not None:
            return progress
    return _in_epochs(tail)


def _in_epochs(tail: bytes) -> Progress | None:
    """From the last counter of epochs.

    A line with nothing but the counter begins its epoch; with figures behind it, it ends it.
    """
    matches = _EPOCH.findall(tail)
    if not matches:
        return None
    number, whole, rest = int(matches[-1][0]), int(matches[-1][1]), matches[-1][2]
    if not whole or number > whole:
        return None
    bar = _BAR.match(rest)
    if bar is not None:
        done = max(0, number - 1) + min(100, int(bar[1])) / 100
    else:
        done = number if rest.strip(b" \t.:-") else max(0, number - 1)
    return Progress(done / whole, f"epoch {number} of {whole}")


def is_news(old: Progress | None, new: Progress, stored_at: datetime | None, now: datetime) -> bool:
    """Whether the new progress is stored now, so that a busy reporter costs few writes."""
    if old is None or stored_at is None:
        return True
    if new == old or now - stored_at < STORED_EVERY:
        return False
    is_small = abs(new.fraction - old.fraction) < SMALL_CHANGE and new.fraction < 1
    return not is_small or now - stored_at >= SMALL_CHANGES_EVERY


def run_time(
    started_at: datetime,
    progress: Progress | None,
    reported_at: datetime | None,
    usual: RunTime | None,
    limit: timedelta | None = None,
) -> RunTime | None:
    """The whole run time by the progress, else the usual one. None: neither is known."""
    if progress is None or reported_at is None or progress.fraction < LEAST_FRACTION:
        return usual
    total = max(reported_at - started_at, timedelta()) / progress.fraction
    late = total + (1 - progress.fraction) * SLOWER_PART * total
    return RunTime(total, late) if limit is None else RunTime(min(total, limit), min(late, limit))


def has_moved(old: Ends | None, new: Ends | None, now: datetime) -> bool:
    """Whether an expected end is stored again."""
    if old is None or new is None:
        return old != new
    least = max(MOVED_LEAST, (new.p50 - now) * MOVED_PART)
    return old.p50 < now or abs(new.p50 - old.p50) > least or abs(new.p90 - old.p90) > 2 * least
