"""Step: whether a model service could start on this host, without starting it.

Files are looked up as its account could: a closed folder ends the search, so the answer shows
nothing that the account may not see.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from django.conf import settings

from monitor.facts.formats import shortest_size
from monitor.gpus.snapshot import rows as snapshots
from scheduler.language_models.model_services.policy import services as policy
from scheduler.language_models.model_services.rows import services as rows
from scheduler.runner import accounts
from scheduler.runner.accounts import Account

PORT, GPU = "9000", "0"
READ, EXECUTE = os.R_OK, os.X_OK
WORDS = {READ: "read", EXECUTE: "run"}


@dataclass(frozen=True, slots=True)
class Finding:
    """One check. is_ok None: unknown."""

    text: str
    is_ok: bool | None


@dataclass(frozen=True, slots=True)
class DryRun:
    """argv: the command as it would run, with an example of a port."""

    argv: list[str]
    findings: tuple[Finding, ...]


def dry_run(values: Mapping[str, Any], source: str = "") -> DryRun:
    """values: columns of a service without problems. source: the model's file, "" = none."""
    size = values.get("memory_mib")
    argv = policy.filled_argv(
        values["argv"],
        {"model": values["name"], "port": PORT, "gpu": GPU, "gpu_memory_fraction": _fraction(size)},
    )
    account = accounts.account_of_service("", run_as=settings.CONFIG.run_as)
    findings = [_program(policy.program_of(argv), account)]
    if source.startswith("/"):
        findings.append(_usable(Path(source), account, READ))
    findings.append(_memory(size))
    return DryRun(argv, tuple(findings))


def _program(program: str, account: Account) -> Finding:
    if "/" in program:
        return _usable(Path(program), account, EXECUTE)
    for folder in accounts.search_path(account).split(os.pathsep):
        finding = _usable(Path(folder) / program, account, EXECUTE)
        if finding.is_ok is not False:
            return finding
    text = (
        f"{program} is in no folder of PATH of {account.name}."
        " Install it, or choose an own command with its whole path."
    )
    return Finding(text, False)


def _memory(size_mib: int | None) -> Finding:
    if size_mib is None:
        return Finding("The first instance gets a whole GPU, until its memory is measured.", True)
    most = _largest_gpu()
    needed = shortest_size(size_mib * rows.MIB)
    if most is None:
        return Finding(f"Unknown whether a GPU has {needed}: none was read yet.", None)
    return Finding(f"{needed} of the {shortest_size(most)} of a GPU.", size_mib * rows.MIB <= most)


def _fraction(size_mib: int | None) -> str:
    total = _largest_gpu()
    placed = total if size_mib is None else size_mib * rows.MIB
    return policy.memory_fraction(placed, total)


def _largest_gpu() -> int | None:
    sizes = (gpu.memory_total_bytes for host in snapshots.newest_all() for gpu in host.gpus)
    return max((size for size in sizes if size is not None), default=None)


def _usable(path: Path, account: Account, right: int) -> Finding:
    """Whether the account can use this file, by the modes on the way to it."""
    for part in (*reversed(path.parents), path):
        needed = right if part == path else EXECUTE
        try:
            entry = part.lstat()
            # Only root's links lead to no place that the account could not find out about.
            if stat.S_ISLNK(entry.st_mode) and entry.st_uid != 0:
                return Finding(f"Unknown: {part} is a link, which is not followed.", None)
            entry = part.stat()
        except OSError as error:
            return Finding(f"{part} can't be used on this host: {error.strerror}.", False)
        if not _grants(part, entry, account, needed):
            word = "enter" if part != path else WORDS[needed]
            return Finding(f"{account.name} may not {word} {part} on this host.", False)
    return Finding(f"{account.name} may {WORDS[right]} {path}.", True)


def _grants(path: Path, entry: os.stat_result, account: Account, right: int) -> bool:
    if account.uid is None:
        return os.access(path, right)
    if account.uid == 0:
        return right == READ or bool(entry.st_mode & 0o111)
    if entry.st_uid == account.uid:
        return bool(entry.st_mode >> 6 & right)
    if entry.st_gid in {account.gid, *account.groups}:
        return bool(entry.st_mode >> 3 & right)
    return bool(entry.st_mode & right)
