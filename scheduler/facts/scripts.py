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
