"""Facts: prompts to language models, the instances that answer them, and why one waits."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Why a request waits. position: its place in the queue of its model, from 1."""

    code: WaitCode
    model: str
    position: int
    instances: int = 0
    ready_in_s: float | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Start:
    """A request that an instance takes now."""

    request: Request
    instance: Instance


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """Decision about a request: start it, or let it wait; `boots`: start another instance."""

    instance: Instance | None = None
    boots: bool = False
    wait: Wait | None = None


# The fair-share deficit of each user: the target minus the held part of the GPUs, -1..1.
Deficits = Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Answer of a model. None = the server did not report it."""

    text: str = ""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewPrompt:
    """A prompt as its user sends it. messages: roles and texts, in their order."""

    model: str
    messages: tuple[Mapping[str, str], ...]
    type: PromptType = PromptType.GENERATE
    priority: int = DEFAULT_PRIORITY
    parameters: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DayUse:
    """Requests and tokens of a user since the start of the day."""

    requests: int = 0
    tokens: int = 0
