"""`#PBS` lines of PBS and Torque, as options of `gpucoord submit` with the same meaning."""

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

SIZE = re.compile(r"([0-9]{1,9})([kmgt]?)b", re.IGNORECASE)
STEPS = re.compile(r"[0-9]{1,6}(?:-[0-9]{1,6}(?::[0-9]{1,6})?)?(?:%[0-9]{1,5})?")
INSTEAD = {
    "-o": IN_THE_LOG, "-e": IN_THE_LOG, "-q": NO_QUEUES, "-m": NOTIFIES, "-M": NOTIFIES,
}  # fmt: skip


def _limit(value: str) -> Made:
    """[[hours:]minutes:]seconds."""
    parts = value.split(":")
    return time_limit(parts, ("h", "min", "s")[3 - len(parts) :]) if len(parts) <= 3 else None


def _memory(value: str) -> Made:
    match = SIZE.fullmatch(value)
    if match is None or not int(match[1]):
        return None
    return ["--memory", f"{match[1]} B" if not match[2] else f"{match[1]}{match[2].upper()}iB"]


def _chunk(value: str) -> Made:
    """`1:ncpus=4:ngpus=2` of select, and `1:ppn=4:gpus=2` of nodes: one node."""
    count, *parts = value.split(":")
    return together([_resource(part) for part in parts]) if count == "1" else None


def _resource(item: str) -> Made:
    name, _, value = item.partition("=")
    made = RESOURCES.get(name)
    return made(value) if made else None


def _resources(value: str) -> Made:
    return together([_resource(item) for item in value.split(",")])


def _dependency(value: str) -> Made:
    match = re.fullmatch(r"depend=(afterok|afterany):([0-9:]+)", value)
    return after(match[1], match[2].split(":")) if match else None


def _begin(value: str) -> Made:
    """[[CC]YY]MMDDhhmm, of which hhmm and the whole date are clear."""
    match = re.fullmatch(r"(?:([0-9]{4})([0-9]{2})([0-9]{2}))?([0-9]{2})([0-9]{2})", value)
    if match is None:
        return None
    clock = f"{match[4]}:{match[5]}"
    return ["--begin", f"{match[1]}-{match[2]}-{match[3]} {clock}" if match[1] else clock]


def _variables(value: str) -> Made:
    return [word for variable in value.split(",") for word in ("--env", variable)]


RESOURCES: dict[str, Option] = {
    "walltime": _limit,
    "mem": _memory,
    "ncpus": same("--cpus", NUMBER),
    "ppn": same("--cpus", NUMBER),
    "ngpus": same("--gpus", NUMBER),
    "gpus": same("--gpus", NUMBER),
    "mpiprocs": nothing("1"),
    "select": _chunk,
    "nodes": _chunk,
    "place": nothing("free", "pack"),
}
OPTIONS: dict[str, Option] = {
    "-N": same("--name"),
    "-l": _resources,
    "-J": same("--array", STEPS),
    "-t": same("--array", STEPS),
    "-a": _begin,
    "-W": _dependency,
    "-d": same("--cwd"),
    "-v": _variables,
    # The environment of the shell, one log, and running again are as gpucoord has them.
    "-V": nothing(""),
    "-j": nothing("oe", "eo"),
    "-r": nothing("n"),
}
