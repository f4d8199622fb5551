"""Facts: a model service, its instances, their states and roles."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Mapping
from datetime import datetime
from enum import StrEnum

from msgspec import Struct, field

# Which model a name means. Every door asks here: endpoint, prompts, REST, pages.
#
# A name means the service with exactly this name, else the one that has it as an alias, else the
# only one whose name or alias differs from it in upper case or in the tag `:latest`, as tools
# write it.

LATEST = ":latest"


def normal(name: str) -> str:
    return name.casefold().removesuffix(LATEST)


class ModelNames:
    """The names of all services, each with its aliases."""

    def __init__(self, aliases_of: Mapping[str, Iterable[str]]) -> None:
        self._exact: dict[str, str] = {}
        similar: dict[str, set[str]] = {}
        for service, aliases in aliases_of.items():
            for each in (service, *aliases):
                self._exact.setdefault(each, service)
                similar.setdefault(normal(each), set()).add(service)
        # The name of a service comes before an alias of another one.
        self._exact |= {name: name for name in aliases_of}
        self._similar = {key: min(names) for key, names in similar.items() if len(names) == 1}

    def find(self, name: str) -> str | None:
        """The service's name; None: no service, or more than one, has this name."""
        return self._exact.get(name) or self._similar.get(normal(name))

    def all(self) -> list[str]:
        """Names and aliases, in order."""
        return sorted(self._exact)


class InstanceState(StrEnum):
    """booting: its job waits, starts or does not answer yet · ready: takes requests ·

    draining: ends the requests in flight, takes no new ones · sleeping: has left the GPU ·
    cooling: its process is ending · stopped · failed: ended by itself, or did not start.
    """

    BOOTING = "booting"
    READY = "ready"
    DRAINING = "draining"
    SLEEPING = "sleeping"
    COOLING = "cooling"
    STOPPED = "stopped"
    FAILED = "failed"


# The one table of legal moves.
TRANSITIONS: dict[InstanceState, frozenset[InstanceState]] = {
    InstanceState.BOOTING: frozenset(
        {InstanceState.READY, InstanceState.COOLING, InstanceState.STOPPED, InstanceState.FAILED}
    ),
    InstanceState.READY: frozenset(
        {
            InstanceState.DRAINING,
            InstanceState.SLEEPING,
            InstanceState.COOLING,
            InstanceState.STOPPED,
            InstanceState.FAILED,
        }
    ),
    InstanceState.DRAINING: frozenset(
        {
            InstanceState.READY,
            InstanceState.SLEEPING,
            InstanceState.COOLING,
            InstanceState.STOPPED,
            InstanceState.FAILED,
        }
    ),
    InstanceState.SLEEPING: frozenset(
        {
            # It wakes.
            InstanceState.BOOTING,
            InstanceState.COOLING,
            InstanceState.STOPPED,
            InstanceState.FAILED,
        }
    ),
    InstanceState.COOLING: frozenset({InstanceState.STOPPED, InstanceState.FAILED}),
    InstanceState.STOPPED: frozenset(),
    InstanceState.FAILED: frozenset(),
}
ENDED = frozenset({InstanceState.STOPPED, InstanceState.FAILED})
# States in which an instance serves, or will serve without a new start.
SERVING = frozenset({InstanceState.BOOTING, InstanceState.READY})


class Role(StrEnum):
    """brain_primary, brain_secondary: stay loaded for prompts · worker_or_script: makes room."""

    BRAIN_PRIMARY = "brain_primary"
    BRAIN_SECONDARY = "brain_secondary"
    WORKER_OR_SCRIPT = "worker_or_script"

    @property
    def is_brain(self) -> bool:
        return self is not Role.WORKER_OR_SCRIPT


class PredictionMode(StrEnum):
    """off · suggest: shown with its reason · automatic: instances boot before they are needed."""

    OFF = "off"
    SUGGEST = "suggest"
    AUTOMATIC = "automatic"


class ServiceFact(Struct, frozen=True, kw_only=True):
    """A model service, as input of the policies. Durations in seconds.

    wanted_at: a request came last then that no instance could take; None = there was none.
    keep_alive_s: None = it is never unloaded for being idle.
    gpus: of each instance; 0 = it runs on the CPU. expected_boot_s: learned, or the shipped value.
    retry_at: no start before this, after failures. evicted_at: it left for a job or a user, and has
    not been loaded since. is_held: a batch has its GPUs for itself; no instance boots meanwhile.
    predicted: instances that the demand of earlier weeks needs now; 0 = not predicted.
    """

    id: int
    name: str
    enabled: bool = True
    gpus: int = 1
    memory_bytes: int | None = None
    min_instances: int = 0
    max_instances: int = 1
    concurrency: int = 4
    role: Role = Role.WORKER_OR_SCRIPT
    pin: bool = False
    keep_alive_s: float | None = 300.0
    min_residency_s: float = 60.0
    wanted_at: datetime | None = None
    retry_at: datetime | None = None
    evicted_at: datetime | None = None
    expected_boot_s: float = 120.0
    is_held: bool = False
    predicted: int = 0

    @property
    def least(self) -> int:
        """Instances that stay loaded."""
        return max(self.min_instances, min(self.predicted, self.max_instances))


class InstanceFact(Struct, frozen=True, kw_only=True):
    """An instance that has not ended, as input of the policies.

    job_id: the job that runs it. in_flight: requests that it answers now. started_boot_at: when its
    process was placed; None = its job waits for a place. sleep_level: at which it sleeps, or goes
    to sleep; 0 = it does not. left_memory: its last sleep did not give the memory back.
    """

    id: int
    service_id: int
    state: InstanceState
    since: datetime
    job_id: int | None = None
    host: str = ""
    gpu_uuids: tuple[str, ...] = ()
    in_flight: int = 0
    memory_bytes: int | None = None
    started_boot_at: datetime | None = None
    ready_at: datetime | None = None
    last_request_at: datetime | None = None
    answered_at: datetime | None = None
    requests_per_hour: float = 0.0
    sleep_level: int = 0
    left_memory: bool = False

    @property
    def wakes(self) -> bool:
        """Whether it returns from sleep; otherwise it boots."""
        return self.state is InstanceState.BOOTING and self.sleep_level > 0

    @property
    def is_busy(self) -> bool:
        return self.in_flight > 0

    @property
    def idle_since(self) -> datetime | None:
        """When it began to wait for requests; None = it serves one, or is not ready."""
        if self.state is not InstanceState.READY or self.is_busy:
            return None
        return max(filter(None, (self.ready_at, self.last_request_at)), default=self.since)


# The user who owns the jobs of instances. It has no quota, and cannot log in.
OWNER = "gpucoord-models"
# Of kinds of models that load fast, by the begin of the name.
FAST_BOOT_S = {"whisper": 5.0, "sentence-transformers": 3.0}
# Of language models: up to so many billions of parameters.
BOOT_S_BY_SIZE = ((4.0, 60.0), (10.0, 120.0), (20.0, 160.0), (40.0, 240.0))
LARGEST_BOOT_S = 360.0
DEFAULT_BOOT_S = 120.0
_SIZE = re.compile(r"(?<![a-z0-9.])(\d{1,4}(?:\.\d{1,2})?)b(?![a-z0-9])", re.IGNORECASE)
WAKE_S = 5.0


def shipped_boot_s(name: str) -> float:
    """The boot seconds of a model before one was measured, by the size in its name."""
    for begin, seconds in FAST_BOOT_S.items():
        if name.startswith(begin):
            return seconds
    if (size := _SIZE.search(name)) is None:
        return DEFAULT_BOOT_S
    classes = (seconds for most, seconds in BOOT_S_BY_SIZE if float(size[1]) <= most)
    return next(classes, LARGEST_BOOT_S)


# Prompts to language models, the instances that answer them, and why one waits.


class PromptStatus(StrEnum):
    """assigned: an instance was chosen. running: the instance has the request."""

    QUEUED = "queued"
    ASSIGNED = "assigned"
    RUNNING = "running"
    COMPLETE = "complete"
    FAILED = "failed"


OPEN = frozenset({PromptStatus.QUEUED, PromptStatus.ASSIGNED, PromptStatus.RUNNING})
WITH_INSTANCE = frozenset({PromptStatus.ASSIGNED, PromptStatus.RUNNING})


class PromptType(StrEnum):
    PARSE = "parse"
    TRANSFORM = "transform"
    GENERATE = "generate"
    EXECUTE = "execute"
    DECIDE = "decide"


DEFAULT_PRIORITY = 3
# A prompt whose instances fail this many times fails itself.
MOST_ATTEMPTS = 3
# A restart of gpucoord is no failure of the prompt, unless the prompt may be what ends it.
MOST_RESTARTS = 10


class Instance(Struct, frozen=True, kw_only=True):
    """An instance of a model service, as the assignment sees it.

    is_ready: takes requests. is_booting: will take requests. wakes: from sleep. ready_in_s:
    expected seconds until then; None = not known, as its start waits for a GPU. url: the base of
    its API. account: of its service, as chosen; "" = the default. host: it stands for the endpoint
    of this other host; "" = an instance of this host.
    """

    id: int
    is_ready: bool = True
    is_booting: bool = False
    wakes: bool = False
    ready_in_s: float | None = None
    url: str = ""
    account: str = ""
    host: str = ""


class Service(Struct, frozen=True, kw_only=True):
    """A model service. concurrency: requests of one instance at a time. problem: why its last
    start failed; "" = it did not. batch: the batch that has its GPUs in exclusive mode.
    elsewhere: where it runs, as only other hosts have ready instances; "" = here. endpoints: of
    these hosts, the one with the fewest requests first; () = none can be reached.
    """

    id: int
    name: str
    concurrency: int = 1
    max_instances: int = 1
    is_enabled: bool = True
    problem: str = ""
    batch: int | None = None
    elsewhere: str = ""
    endpoints: tuple[Instance, ...] = ()
    instances: tuple[Instance, ...] = ()

    @property
    def ready(self) -> tuple[Instance, ...]:
        return tuple(instance for instance in self.instances if instance.is_ready)


class Request(Struct, frozen=True, kw_only=True):
    """A prompt or a request of the endpoint that waits for an instance.

    since_s: when it came, in seconds of any clock. tried: instances that failed with it.
    """

    key: Hashable
    service: str
    owner: str
    priority: int = DEFAULT_PRIORITY
    since_s: float = 0.0
    tried: frozenset[int] = frozenset()


class WaitCode(StrEnum):
    MODEL_BOOTS = "model_boots"
    MODEL_WAITS_FOR_GPU = "model_waits_for_gpu"
    INSTANCES_BUSY = "instances_busy"
    PLACE_RESERVED = "place_reserved"
    MODEL_FAILED = "model_failed"
    BATCH_EXCLUSIVE = "batch_exclusive"
    MODEL_DISABLED = "model_disabled"
    MODEL_ELSEWHERE = "model_on_other_host"


class Wait(Struct, frozen=True, kw_only=True):
    """Why a request waits. position: its place in the queue of its model, from 1."""

    code: WaitCode
    model: str
    position: int
    instances: int = 0
    ready_in_s: float | None = None
    reason: str = ""


class Start(Struct, frozen=True):
    """A request that an instance takes now."""

    request: Request
    instance: Instance


class Assignment(Struct, frozen=True, kw_only=True):
    """Decision about a request: start it, or let it wait; `boots`: start another instance."""

    instance: Instance | None = None
    boots: bool = False
    wait: Wait | None = None


# The fair-share deficit of each user: the target minus the held part of the GPUs, -1..1.
Deficits = Mapping[str, float]


class Answer(Struct, frozen=True, kw_only=True):
    """Answer of a model. None = the server did not report it."""

    text: str = ""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class NewPrompt(Struct, frozen=True, kw_only=True):
    """A prompt as its user sends it. messages: roles and texts, in their order."""

    model: str
    messages: tuple[Mapping[str, str], ...]
    type: PromptType = PromptType.GENERATE
    priority: int = DEFAULT_PRIORITY
    parameters: Mapping[str, object] = field(default_factory=dict)


class DayUse(Struct, frozen=True):
    """Requests and tokens of a user since the start of the day."""

    requests: int = 0
    tokens: int = 0
