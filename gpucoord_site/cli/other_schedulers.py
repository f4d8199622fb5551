"""Options in scripts for other schedulers, as those of `gpucoord submit` with the same meaning."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from gpucoord_site.cli.script_files import BadScript
from scheduler.facts.units import parse_duration

# Parts of options that several schedulers write alike.

# The options of gpucoord for a value; None: gpucoord has nothing with the same meaning.
Made = list[str] | None
Option = Callable[[str], Made]
TEXT = re.compile(r".+")
NUMBER = re.compile(r"[0-9]{1,5}")
IN_THE_LOG = (
    " The output is in gpucoord logs JOB; for a file too, begin the script with exec > FILE 2>&1"
)
NO_QUEUES = " There are no queues or partitions; --host and --model choose GPUs."
NOTIFIES = " Use #GPUCOORD --notify finished,failed."


def same(option: str, pattern: re.Pattern[str] = TEXT) -> Option:
    """The option of gpucoord with the same value."""

    def made(value: str) -> Made:
        return [option, value] if pattern.fullmatch(value) else None

    return made


def nothing(*values: str) -> Option:
    """For values that are how gpucoord works anyway."""
    return lambda value: [] if value in values else None


def time_limit(parts: Sequence[str], units: Sequence[str]) -> Made:
    """The time limit of numbers with these units."""
    if len(parts) > len(units) or not all(NUMBER.fullmatch(part) for part in parts):
        return None
    pairs = zip(parts, units, strict=False)
    text = " ".join(f"{int(part)}{unit}" for part, unit in pairs if int(part))
    try:
        parse_duration(text)
    except ValueError:
        return None
    return ["--time-limit", text]


def clock(*units: str) -> Option:
    """A time limit of numbers with colons between them; leading ones may be left out."""

    def made(value: str) -> Made:
        parts = value.split(":")
        return time_limit(parts, units[max(0, len(units) - len(parts)) :])

    return made


def memory(pattern: re.Pattern[str], unit: str = "") -> Option:
    """A number, with one of the letters or this unit; "" = bytes."""

    def made(value: str) -> Made:
        match = pattern.fullmatch(value)
        if match is None or not int(match[1]):
            return None
        letter = (match[2] or unit).upper()
        return ["--memory", f"{match[1]}{letter}iB" if letter else f"{match[1]} B"]

    return made


def dependency(pattern: re.Pattern[str]) -> Option:
    """`afterok:12:13` and its like."""

    def made(value: str) -> Made:
        match = pattern.fullmatch(value)
        return after(match[1], match[2].split(":")) if match else None

    return made


def after(kind: str, jobs: Sequence[str]) -> Made:
    """Wait for the success or the end of jobs with these numbers."""
    if not jobs or not all(re.fullmatch("[0-9]{1,9}", job) for job in jobs):
        return None
    return ["--after-success" if kind in ("afterok", "done") else "--after", ",".join(jobs)]


def together(parts: Sequence[Made]) -> Made:
    """The options of all parts, if each has some meaning."""
    return None if None in parts else [word for part in parts if part for word in part]


# Advice for options that have no equivalent.
INSTEAD = {
    "--output": IN_THE_LOG,
    "--partition": NO_QUEUES,
    "--constraint": " Use #GPUCOORD --model.",
}
# Short options of sbatch.
SHORT = {
    "-J": "--job-name", "-t": "--time", "-a": "--array", "-c": "--cpus-per-task", "-d":
    "--dependency", "-b": "--begin", "-D": "--chdir", "-G": "--gpus", "-N": "--nodes",
    "-n": "--ntasks", "-o": "--output", "-e": "--error", "-p": "--partition", "-A": "--account",
}  # fmt: skip
GPUS = re.compile(r"(?:gres/)?gpu(?::[A-Za-z][\w.-]*)?(?::([0-9]{1,4}))?")
INDICES = re.compile(r"[0-9,:%-]+")


def translated(mark: str, words: Sequence[str], where: str) -> list[str]:
    """The options of one line. Raises BadScript for one whose meaning gpucoord does not have."""
    pairs, table, instead = DIALECTS[mark]
    options: list[str] = []
    for name, value in pairs(words):
        made = table[name](value) if name in table else None
        if made is None:
            sign = "=" if name.startswith("--") else " "
            shown = f"{name}{sign}{value}" if value else name
            raise BadScript(
                f"{where}: {mark} {shown} has no option with the same meaning. Remove it, or put"
                f" another # before the line to ignore it.{instead.get(name, '')}"
            )
        options += made
    return options


def _pairs(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Long names of Slurm with their values; "" = none."""
    for name, value in _short_pairs(words):
        yield SHORT.get(name, name), value


def _short_pairs(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Options of one letter, whose value may follow without a space, and long ones."""
    rest = list(words)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        if not word.startswith("--") and len(word) > 2:
            name, equals, value = word[:2], "=", word[2:].removeprefix("=")
        if not equals and rest and not rest[0].startswith("-"):
            value = rest.pop(0)
        yield name, value


def _word_pairs(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Options of LSF, words with one -, each followed by its value."""
    rest = list(words)
    while rest:
        name = rest.pop(0)
        yield name, rest.pop(0) if rest and not rest[0].startswith("-") else ""


def _gpus(value: str) -> Made:
    if re.fullmatch(r"[0-9]{1,4}", value):
        return ["--gpus", value]
    match = GPUS.fullmatch(value)
    is_plain = match is not None and not re.search(r"gpu:[A-Za-z]", value)
    return ["--gpus", match[1] or "1"] if match is not None and is_plain else None


def _time(value: str) -> Made:
    """Slurm's minutes, minutes:seconds, h:m:s, days-hours, d-h:m and d-h:m:s."""
    days, dash, rest = value.rpartition("-")
    parts = rest.split(":")
    if dash:
        return time_limit([days, *parts], ("d", "h", "min", "s"))
    return time_limit(parts, ("h", "min", "s") if len(parts) == 3 else ("min", "s"))


def _begin(value: str) -> Made:
    clock = re.fullmatch(r"([0-9]{1,2}:[0-9]{2})(?::00)?", value)
    moment = re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}(?::[0-9]{2})?", value)
    later = re.fullmatch(r"now\+([0-9]{1,6})(seconds?|minutes?|hours?|days?|weeks?)?", value)
    if later:
        return ["--begin", f"in {later[1]} {later[2] or 'seconds'}"]
    return ["--begin", clock[1] if clock else value] if clock or moment else None


OPTIONS: dict[str, Option] = {
    "--nodes": nothing("1"),
    "--ntasks": nothing("1"),
    "--ntasks-per-node": nothing("1"),
    "--gres": lambda value: _gpus(value) if value.startswith("gpu") else None,
    "--gpus": _gpus,
    "--gpus-per-node": _gpus,
    "--time": _time,
    "--job-name": same("--name"),
    "--array": same("--array", INDICES),
    "--mem": memory(re.compile(r"([0-9]{1,9})([KMGT]?)B?", re.IGNORECASE), "M"),
    "--cpus-per-task": same("--cpus", NUMBER),
    "--begin": _begin,
    "--dependency": dependency(re.compile(r"(afterok|afterany):([0-9:]+)")),
    "--chdir": same("--cwd"),
}


# `#BSUB` lines of LSF, as options of `gpucoord submit` with the same meaning.

NAME = re.compile(r"([^\[\]]+?)(?:\[([0-9,:-]{1,100})\](%[0-9]{1,5})?)?")
CONDITION = re.compile(r"(done|ended)\(([0-9]{1,9})\)")
LSF_INSTEAD = {
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


def _lsf_gpus(value: str) -> Made:
    """A GPU is not shared unless a job declares its memory."""
    parts = [part.partition("=") for part in value.split(":")]
    made: list[Made] = [GPU[name](text) if name in GPU else None for name, _, text in parts if name]
    return together(made)


def _lsf_dependency(value: str) -> Made:
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
LSF_OPTIONS: dict[str, Option] = {
    "-J": _name,
    "-W": clock("h", "min"),
    "-n": same("--cpus", NUMBER),
    "-R": nothing("span[hosts=1]"),
    "-gpu": _lsf_gpus,
    "-M": memory(re.compile(r"([0-9]{1,9})([KMGT])B?", re.IGNORECASE)),
    "-w": _lsf_dependency,
    "-b": same("--begin", re.compile(r"[0-9]{1,2}:[0-9]{2}")),
    "-cwd": same("--cwd"),
    "-env": nothing("all"),
}


# `#PBS` lines of PBS and Torque, as options of `gpucoord submit` with the same meaning.

STEPS = re.compile(r"[0-9]{1,6}(?:-[0-9]{1,6}(?::[0-9]{1,6})?)?(?:%[0-9]{1,5})?")
PBS_INSTEAD = {
    "-o": IN_THE_LOG, "-e": IN_THE_LOG, "-q": NO_QUEUES, "-m": NOTIFIES, "-M": NOTIFIES,
}  # fmt: skip


def _chunk(value: str) -> Made:
    """`1:ncpus=4:ngpus=2` of select, and `1:ppn=4:gpus=2` of nodes: one node."""
    count, *parts = value.split(":")
    return together([_resource(part) for part in parts]) if count == "1" else None


def _resource(item: str) -> Made:
    name, _, value = item.partition("=")
    made = RESOURCES.get(name)
    return made(value) if made else None


def _pbs_begin(value: str) -> Made:
    """[[CC]YY]MMDDhhmm, of which hhmm and the whole date are clear."""
    match = re.fullmatch(r"(?:([0-9]{4})([0-9]{2})([0-9]{2}))?([0-9]{2})([0-9]{2})", value)
    if match is None:
        return None
    clock = f"{match[4]}:{match[5]}"
    return ["--begin", f"{match[1]}-{match[2]}-{match[3]} {clock}" if match[1] else clock]


RESOURCES: dict[str, Option] = {
    "walltime": clock("h", "min", "s"),
    "mem": memory(re.compile(r"([0-9]{1,9})([KMGT]?)B", re.IGNORECASE)),
    "ncpus": same("--cpus", NUMBER),
    "ppn": same("--cpus", NUMBER),
    "ngpus": same("--gpus", NUMBER),
    "gpus": same("--gpus", NUMBER),
    "mpiprocs": nothing("1"),
    "select": _chunk,
    "nodes": _chunk,
    "place": nothing("free", "pack"),
}
PBS_OPTIONS: dict[str, Option] = {
    "-N": same("--name"),
    "-l": lambda value: together([_resource(item) for item in value.split(",")]),
    "-J": same("--array", STEPS),
    "-t": same("--array", STEPS),
    "-a": _pbs_begin,
    "-W": dependency(re.compile(r"depend=(afterok|afterany):([0-9:]+)")),
    "-d": same("--cwd"),
    "-v": lambda value: [word for each in value.split(",") for word in ("--env", each)],
    # The environment of the shell, one log, and running again are as gpucoord has them.
    "-V": nothing(""),
    "-j": nothing("oe", "eo"),
    "-r": nothing("n"),
}


# How each kind of line is read: its words, the meaning of an option, and advice without one.
Pairs = Callable[[Sequence[str]], Iterator[tuple[str, str]]]
DIALECTS: dict[str, tuple[Pairs, Mapping[str, Option], Mapping[str, str]]] = {
    "#SBATCH": (_pairs, OPTIONS, INSTEAD),
    "#PBS": (_short_pairs, PBS_OPTIONS, PBS_INSTEAD),
    "#BSUB": (_word_pairs, LSF_OPTIONS, LSF_INSTEAD),
}
