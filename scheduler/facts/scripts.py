"""Facts: a registered script, the template of its arguments, and batches of its jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Any


class GpuUse(StrEnum):
    """Whether jobs of a script have a GPU."""

    YES = "yes"
    OPTIONAL = "optional"
    NO = "no"


class TaskType(StrEnum):
    TRANSCRIBE = "transcribe"
    EMBED = "embed"
    PROCESS = "process"


# A word, or a group of words that is left out when one of its arguments is not given.
Word = str | Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """argv: its words with {argument} in place of arguments. schema: JSON Schema of the arguments.

    worker: those of a program that loads once and answers the items of a batch; () = it has none.
    argv () = it has a worker only.
    item_argument: the argument that gets the item of a batch; "" = the variable GPUCOORD_ITEM only.
    memory_bytes: GPU memory. usual_s: expected run time. None = not said.
    """

    name: str
    argv: tuple[Word, ...] = ()
    worker: tuple[Word, ...] = ()
    schema: Mapping[str, Any] = field(default_factory=dict)
    description: str = ""
    gpu: GpuUse = GpuUse.YES
    task_type: TaskType = TaskType.PROCESS
    item_argument: str = ""
    memory_bytes: int | None = None
    usual_s: int | None = None
    time_limit_s: int | None = None


# The scripts that a new installation has; operators change or disable them in the admin.


def _file(title: str, example: str) -> dict[str, Any]:
    rule = {"type": "string", "title": title, "pattern": "^/", "maxLength": 4096}
    return rule | {"examples": [example]}


def _schema(required: list[str], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required}


GIB = 1024**3
SHIPPED: tuple[dict[str, Any], ...] = (
    {
        "name": "embed_768",
        "description": "Embeds each line of a text file with a local model.",
        "argv": ["{python}", "{programs}/embed.py", "{input}", "{output}", "--model={model}"],
        "worker": ["{python}", "{programs}/serve.py", "{programs}/embed.py:Worker", "{model}"],
        "schema": _schema(
            ["input", "output"],
            input=_file("Text file, one text per line", "/data/texts/a.txt"),
            output=_file(
                "File for the vectors (JSON lines); in a batch, a folder", "/data/vectors"
            ),
            model={
                "type": "string",
                "title": "Model (name, folder or GGUF file)",
                "default": "sentence-transformers/all-mpnet-base-v2",
            },
        ),
        "gpu": "optional",
        "task_type": "embed",
        "item_argument": "input",
        "gpu_memory_bytes": 4 * GIB,
    },
    {
        "name": "embed_1536",
        "description": "Embeds each line of a text file by an API. Needs no GPU. The key is read"
        " from a file of the user.",
        "argv": [
            *("{python}", "{programs}/embed.py", "{input}", "{output}"),
            *("--model={model}", "--url={url}", "--key-file={key_file}"),
        ],
        "schema": _schema(
            ["input", "output", "url", "key_file"],
            input=_file("Text file, one text per line", "/data/texts/a.txt"),
            output=_file("File for the vectors (JSON lines)", "/data/vectors.jsonl"),
            url={"type": "string", "title": "Address of /v1/embeddings", "pattern": "^https?://"},
            key_file=_file("File with the API key", "/home/alice/.api-key"),
            model={"type": "string", "title": "Model", "default": "text-embedding-3-small"},
        ),
        "gpu": "no",
        "task_type": "embed",
        "item_argument": "input",
    },
    {
        "name": "extract_keyframes",
        "description": "Writes the key frames of a video as images (ffmpeg).",
        "argv": [
            *("{python}", "{programs}/keyframes.py", "{input}", "{output}"),
            ["--width={width}"],
        ],
        "schema": _schema(
            ["input", "output"],
            input=_file("Video file", "/data/videos/a.mp4"),
            output=_file("Folder for the images", "/data/frames"),
            width={"type": "integer", "title": "Width (pixels)", "minimum": 16, "maximum": 8192},
        ),
        "gpu": "no",
        "task_type": "process",
        "item_argument": "input",
    },
    {
        "name": "whisper_transcribe",
        "description": "Transcribes a recording with the program whisper, which must be in PATH."
        " In a batch, with the package faster-whisper or openai-whisper if one is installed.",
        "argv": [
            *("whisper", "{input}", "--output_dir={output}", "--model={model}"),
            ["--language={language}"],
        ],
        "worker": [
            *("{python}", "{programs}/serve.py", "{programs}/transcribe.py:Worker", "{model}"),
            "{language}",
        ],
        "schema": _schema(
            ["input", "output"],
            input=_file("Recording", "/data/recordings/a.wav"),
            output=_file("Folder for the text", "/data/transcripts"),
            model={
                "type": "string",
                "title": "Model",
                "enum": ["tiny.en", "base.en", "small.en", "small", "medium", "large-v3"],
                "default": "small.en",
            },
            language={
                "type": "string",
                "title": "Language",
                "pattern": "^[a-z]{2}$",
                "examples": ["en"],
            },
        ),
        "gpu": "yes",
        "task_type": "transcribe",
        "item_argument": "input",
        "gpu_memory_bytes": 6 * GIB,
        "usual_s": 45,
    },
)


MOST_ITEMS = 100_000
LONGEST_ITEM = 4096
# Of one user: batches that have not ended, and items of all batches of the last 24 hours.
MOST_OPEN_BATCHES = 50
MOST_ITEMS_A_DAY = 1_000_000
# In JSON. The job of the item has a larger result.
LARGEST_ITEM_RESULT = 8 * 1024


class BatchState(StrEnum):
    """complete: every item succeeded. failed: all items have ended, and some have failed."""

    RUNNING = "running"
    COMPLETE = "complete"
    FAILED = "failed"
    CANCELLED = "cancelled"


class ItemState(StrEnum):
    """queued: no job yet. assigned: its job waits for a GPU, or starts; or workers have it at
    hand.
    """

    QUEUED = "queued"
    ASSIGNED = "assigned"
    RUNNING = "running"
    COMPLETE = "complete"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class BatchWork:
    """Input of a pass for one batch. waiting, running: its open items, by their jobs.

    has_changed: the job of an item has moved on. has_queued: items have no job yet.
    """

    waiting: int = 0
    running: int = 0
    has_changed: bool = False
    has_queued: bool = False


class WorkerState(StrEnum):
    """queued: its job waits for a GPU. booting: it loads. ready: it has taken an item."""

    QUEUED = "queued"
    BOOTING = "booting"
    READY = "ready"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer of a worker to one try of an item.

    job, attempt: of the worker that has taken it; 0 = unknown. began, ended: in seconds since 1970;
    ended None: it has not answered. returned: it had to leave before it could answer.
    """

    job: int = 0
    attempt: int = 0
    began: float = 0.0
    ended: float | None = None
    output: Any = None
    error: str | None = None
    returned: bool = False

    @property
    def took_s(self) -> float:
        return 0.0 if self.ended is None else max(0.0, self.ended - self.began)


# An item of these states has a job that has not ended.
OPEN_ITEMS = (ItemState.ASSIGNED.value, ItemState.RUNNING.value)


class ExclusiveStep(StrEnum):
    """The steps of the exclusive mode, in their order.

    waiting: for GPUs, or for another batch · announced: users are notified, and no other job starts
    on its GPUs · draining: new prompts queue, running ones finish · unloading: models leave ·
    working: the GPUs run items only · reloading: models load again, one after another · ended.
    """

    WAITING = "waiting"
    ANNOUNCED = "announced"
    DRAINING = "draining"
    UNLOADING = "unloading"
    WORKING = "working"
    RELOADING = "reloading"
    ENDED = "ended"


class Approval(StrEnum):
    """Why a batch may be exclusive.

    none: by a quota, or its owner is an operator · share: on as many GPUs as the fair share of its
    owner is worth · asked: not before an operator approves it · approved.
    """

    NONE = "none"
    SHARE = "share"
    ASKED = "asked"
    APPROVED = "approved"


# In these steps only items of the batch, and models that are loaded again, start on its GPUs.
RESERVING = (
    ExclusiveStep.ANNOUNCED,
    ExclusiveStep.DRAINING,
    ExclusiveStep.UNLOADING,
    ExclusiveStep.WORKING,
    ExclusiveStep.RELOADING,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExclusiveFact:
    """The exclusive mode of a batch, as input of the policy.

    is_over: the batch has no items left, or was cancelled. is_stopped: an operator ended the mode.
    is_next: no other batch has GPUs of the host or waits for longer. gpus: how many it can take,
    later how many it has. in_flight: requests of the models on them. loaded: instances on them that
    have not ended. reloads: models to load again. boots: the one that is being loaded has neither
    become ready nor failed.
    """

    step: ExclusiveStep
    since: datetime
    is_over: bool = False
    is_stopped: bool = False
    is_next: bool = True
    gpus: int = 0
    in_flight: int = 0
    loaded: int = 0
    reloads: int = 0
    boots: bool = False


# Templates of background work for idle GPUs, and the signals that weight them.


class SignalName(StrEnum):
    """curriculum_weight: how much training wants it now, 1 = neutral · improvement_velocity: how

    fast it improves, in any unit · data_age_hours: since its data were made · quality: of its
    results, 0 to 1.
    """

    CURRICULUM_WEIGHT = "curriculum_weight"
    IMPROVEMENT_VELOCITY = "improvement_velocity"
    DATA_AGE_HOURS = "data_age_hours"
    QUALITY = "quality"


@dataclass(frozen=True, slots=True)
class Signal:
    """A posted value, and when it was posted."""

    value: float
    at: datetime


NO_SIGNALS: Mapping[SignalName, Signal] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateFact:
    """A template as input of the policy. gpus: of each job; 0 = it needs no GPU.

    running: its open jobs. started_today: since midnight in the zone of the server. on_gpu: its
    open jobs by GPU. None of the limits = no limit.
    """

    id: int
    name: str
    weight: float = 1.0
    gpus: int = 1
    signals: Mapping[SignalName, Signal] = field(default_factory=lambda: NO_SIGNALS)
    most_running: int = 1
    most_per_gpu: int = 1
    most_per_day: int | None = None
    running: int = 0
    started_today: int = 0
    on_gpu: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A template with its factors, 1 = neutral, and its weight; share: its chance, 0 to 1."""

    name: str
    base: float
    factors: Mapping[SignalName, float]
    weight: float
    share: float = 0.0


@dataclass(frozen=True, slots=True)
class Choice:
    """The result of `pick_weighted_config`: the same seed and facts give the same choice."""

    template: TemplateFact
    candidates: tuple[Candidate, ...]
    seed: int
