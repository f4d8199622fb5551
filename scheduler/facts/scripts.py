"""Facts: a registered script, its argument template, and what its jobs request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
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
