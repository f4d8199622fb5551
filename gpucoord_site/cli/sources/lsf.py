"""`#BSUB` lines of LSF, as options of `gpucoord submit` with the same meaning."""

from __future__ import annotations

import re

from gpucoord_site.cli.sources.foreign_words import (
    IN_THE_LOG,
    NO_QUEUES,
    NOTIFIES,
    NUMBER,
    Made,
    Option,
    after,
    nothing,
    same,
    time_limit,
    together,
)

NAME = re.compile(r"([^\[\]]+?)(?:\[([0-9,:-]{1,100})\](%[0-9]{1,5})?)?")
SIZE = re.compile(r"([0-9]{1,9})([KMGT])B?", re.IGNORECASE)
CONDITION = re.compile(r"(done|ended)\(([0-9]{1,9})\)")
INSTEAD = {
    **dict.fromkeys(("-o", "-oo", "-e", "-eo"), IN_THE_LOG),
    **dict.fromkeys(("-N", "-B", "-u"), NOTIFIES),
    "-q": NO_QUEUES,
    "-M": " Write the unit too, because it depends on the cluster: -M 16GB.",
}


def _name(value: str) -> Made:
    match = NAME.fullmatch(value)
    if match is None:
        return None
    array = ["--array", f"{match[2]}{match[3] or ''}"] if match[2] else []
    return ["--name", match[1], *array]


def _limit(value: str) -> Made:
    """[hours:]minutes."""
    parts = value.split(":")
    return time_limit(parts, ("h", "min")[2 - len(parts) :]) if len(parts) <= 2 else None


def _memory(value: str) -> Made:
    match = SIZE.fullmatch(value)
    return ["--memory", f"{match[1]}{match[2].upper()}iB"] if match and int(match[1]) else None


def _gpus(value: str) -> Made:
    """A GPU is not shared unless a job declares its memory."""
    parts = [part.partition("=") for part in value.split(":")]
    made: list[Made] = [GPU[name](text) if name in GPU else None for name, _, text in parts if name]
    return together(made)


def _dependency(value: str) -> Made:
    conditions = [CONDITION.fullmatch(part.strip()) for part in value.split("&&")]
    matches = [match for match in conditions if match]
    if len(matches) < len(conditions):
        return None
    of_kind = {
        kind: [match[2] for match in matches if match[1] == kind] for kind in ("done", "ended")
    }
    return together([after(kind, jobs) for kind, jobs in of_kind.items() if jobs])


GPU: dict[str, Option] = {
    "num": same("--gpus", NUMBER),
    "mode": nothing("exclusive_process"),
    "j_exclusive": nothing("yes"),
}
OPTIONS: dict[str, Option] = {
    "-J": _name,
    "-W": _limit,
    "-n": same("--cpus", NUMBER),
    "-R": nothing("span[hosts=1]"),
    "-gpu": _gpus,
    "-M": _memory,
    "-w": _dependency,
    "-b": same("--begin", re.compile(r"[0-9]{1,2}:[0-9]{2}")),
    "-cwd": same("--cwd"),
    "-env": nothing("all"),
}
