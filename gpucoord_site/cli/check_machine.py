"""Findings of `gpucoord check`, and the checks of the machine and of its guards."""

from __future__ import annotations

import errno
import getpass
import http.client
import json
import os
import socket
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from django.apps import apps
from msgspec import Struct
from msgspec.structs import asdict

from gpucoord_site.config.settings import Config
from gpucoord_site.config.values import is_loopback, origin
from gpucoord_site.service.startup_checks import mount_of
from monitor.catalogue import PROFILE_WORDS
from monitor.facts import input_rules
from monitor.facts import thresholds as former
from monitor.facts.formats import GIB
from monitor.facts.input_rules import escaped
from monitor.gpus.policy.capability import cpu_places
from monitor.gpus.sampling.probes.host import LimitsProbe
from monitor.runtime.probes import disk_space, service_state
from monitor.thresholds import policy as policies
from monitor.thresholds.policy import FILE, Layer
from scheduler.catalogue import PROFILES
from scheduler.disk.policy import DiskLevel, DiskPolicy, DiskSpace, is_near, level, sentence
from scheduler.runner.confine import landlock
from scheduler.submission.intake.policy import account_rule

T = TypeVar("T")
# Of /healthz.
LONGEST_ANSWER = 64 * 1024
LITTLE_BYTES, TOO_LITTLE_BYTES = 5 * GIB, GIB // 2


class Level(StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


class Finding(Struct, frozen=True):
    """The result of one check. todo: the remedy."""

    topic: str
    level: Level
    text: str
    todo: str = ""


def ok(topic: str, text: str) -> Finding:
    return Finding(topic, Level.OK, text)


def warn(topic: str, text: str, todo: str = "") -> Finding:
    return Finding(topic, Level.WARN, text, todo)


def fail(topic: str, text: str, todo: str = "") -> Finding:
    return Finding(topic, Level.FAIL, text, todo)


def worst(findings: Iterable[Finding]) -> Level:
    order = list(Level)
    return max((f.level for f in findings), key=order.index, default=Level.OK)


def as_text(title: str, findings: list[Finding]) -> Iterator[str]:
    """The report for a terminal, line by line."""
    width = max(len(f.topic) for f in findings)
    yield title
    yield ""
    for finding in findings:
        yield f"  {finding.level:<4}  {finding.topic:<{width}}  {escaped(finding.text)}"
        if finding.todo:
            yield f"        {'':<{width}}  → {escaped(finding.todo)}"
    yield ""
    counts = {level: sum(f.level is level for f in findings) for level in Level}
    yield f"{counts[Level.OK]} ok, {counts[Level.WARN]} to know, {counts[Level.FAIL]} to mend"


def as_json(title: str, findings: list[Finding]) -> str:
    body = {
        "gpucoord": title,
        "status": worst(findings),
        "findings": [asdict(f) for f in findings],
    }
    return json.dumps(body, indent=2, ensure_ascii=False)


# Profile, accounts, limits, kernel, disk and port.


def account() -> str:
    with suppress(KeyError, OSError):
        return getpass.getuser()
    return f"uid {os.geteuid()}"


def profile(config: Config) -> Iterator[Finding]:
    """The profile of the server, and the policies that its settings file changes."""
    changed = f"; changed in the settings: {', '.join(config.policy)}" if config.policy else ""
    yield ok("profile", f"{config.profile}: {PROFILE_WORDS[config.profile]}{changed}")


def accounts(config: Config) -> Iterator[Finding]:
    """The OS accounts that jobs run as."""
    open_because = "close_data = false"
    if config.close_data:
        open_because = landlock.problem([str(config.data)])
    rule = account_rule(
        is_root=os.geteuid() == 0,
        run_as=config.run_as,
        service_account=account(),
        open_because=open_because,
    )
    yield ok("accounts", rule.text) if rule.is_safe else warn("accounts", rule.text, rule.todo)


def program(_config: Config) -> Iterator[Finding]:
    """Whether other accounts can run the Python of this environment, as the shipped scripts do."""
    if os.geteuid() != 0:
        return
    interpreter = Path(sys.executable)
    closed = closed_part(interpreter) or closed_part(interpreter.resolve())
    if closed is None:
        yield ok("program", f"{interpreter} can be run by all accounts")
    else:
        text = f"{closed} is closed to other accounts"
        unable = "they can run neither the command `gpucoord` nor jobs with the shipped scripts"
        todo = "install gpucoord with a Python that all may read, such as Debian's in /opt/gpucoord"
        yield warn("program", f"{text}: {unable}", todo)


def closed_part(path: Path) -> Path | None:
    """The first folder on the way to a program that others can't enter, or the program itself."""
    for part in (*reversed(path.parents), path):
        needed = 0o005 if part == path else 0o001
        if part.stat().st_mode & needed != needed:
            return part
    return None


def limits(config: Config) -> Iterator[Finding]:
    """The usable CPUs, memory and GPUs, and the origin of each limit."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    may = LimitsProbe(config.cpus, config.memory_gib).read(os.cpu_count(), total)
    cpus = f"{may.cpus or 0:g} of {may.machine_cpus} CPUs ({may.cpus_origin})"
    memory = f"{(may.memory_bytes or 0) / GIB:.1f} of {total / GIB:.1f} GiB ({may.memory_origin})"
    count = cpu_places(config.cpu_jobs, may)
    places = f"{count} job{'' if count == 1 else 's'} without a GPU at once"
    yield ok("limits", f"{cpus}, {memory}; {places}")
    if config.cpu_jobs > count and origin("cpu_jobs", os.environ):
        run = "job without a GPU runs" if count == 1 else "jobs without a GPU run"
        text = f"cpu_jobs is {config.cpu_jobs}, but only {count} {run} at once: one per CPU"
        yield warn("limits", text, "Lower cpu_jobs, or raise cpus if the machine has more.")
    if may.visible_gpus is not None:
        names = ", ".join(may.visible_gpus) or "none"
        yield ok("limits", f"GPUs: {names} (NVIDIA_VISIBLE_DEVICES)")


def pressure(_config: Config) -> Iterator[Finding]:
    try:
        Path("/proc/pressure/cpu").read_text()
    except OSError:
        yield warn(
            "pressure",
            "the kernel keeps no pressure stall information; pages show –",
            "boot with psi=1 to have it",
        )
    else:
        yield ok("pressure", "the kernel keeps pressure stall information (PSI)")


def existing(path: Path) -> Path:
    """The path, or the nearest folder above it that is there."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def data_folder(config: Config) -> Iterator[Finding]:
    place = existing(config.data)
    remedy = "set GPUCOORD_DATA to a folder that this account may write to"
    if not place.is_dir():
        yield fail("data", f"{config.data}: {place} is not a folder", remedy)
    elif not os.access(place, os.W_OK | os.X_OK):
        yield fail("data", f"{account()} may not write to {place} (for {config.data})", remedy)
    elif place != config.data:
        yield ok("data", f"{config.data} (made at the first start)")
    elif config.data.stat().st_mode & 0o007:
        todo = f"chmod o= {config.data}"
        yield warn("data", f"{config.data} can be read by all accounts of this machine", todo)
    else:
        yield ok("data", str(config.data))


def checkpoints(config: Config) -> Iterator[Finding]:
    """Whether other accounts could plant folders of future jobs."""
    folder = config.checkpoints
    if folder is not None and folder.is_dir() and folder.stat().st_mode & 0o022:
        text = f"other accounts can write to {folder}, and keep jobs from starting"
        yield warn("checkpoints", text, f"chmod go-w {folder}")


def disk(config: Config) -> Iterator[Finding]:
    place = existing(config.data)
    space = disk_space.read(place)
    free, mount = space.available_bytes, mount_of(place)
    where = f" ({mount.kind} on {mount.point})" if mount else ""
    used = "" if space.used_pct is None else f"{space.used_pct:.0f} % used, "
    text = f"{used}{free / GIB:.1f} of {space.usable_bytes / GIB:.1f} GiB free{where}"
    if free < TOO_LITTLE_BYTES:
        yield fail("disk", text, "make room: at least 0.5 GiB")
    elif free < LITTLE_BYTES:
        yield warn("disk", text, "logs of jobs will soon need more")
    else:
        yield ok("disk", text)


def port(config: Config) -> Iterator[Finding]:
    address = f"{config.host}:{config.port}"
    problem = _bind_problem(config.host, config.port)
    if problem is None:
        yield from _reachable(config, address)
    elif problem == errno.EADDRINUSE and _is_gpucoord(config):
        yield ok("port", f"gpucoord is running on {address}")
    elif problem == errno.EADDRINUSE:
        todo = "stop it, or take another: gpucoord up --port 8001"
        yield fail("port", f"{address} is taken by another program", todo)
    elif problem == errno.EACCES:
        yield fail("port", f"{account()} may not open {address}", "take a port from 1024 up")
    else:
        yield fail("port", f"{address} can't be opened: {os.strerror(problem)}", "set host")


def _reachable(config: Config, address: str) -> Iterator[Finding]:
    if not is_loopback(config.host) and not config.https:
        todo = "put a proxy with HTTPS in front and set https = true"
        yield warn("port", f"{address} is free; passwords travel unencrypted", todo)
    else:
        yield ok("port", f"{address} is free")


def listeners(config: Config) -> Iterator[Finding]:
    """Addresses that a running service can't listen on; before its start, the port for models."""
    state = service_state.read(config.data / "run")
    if state is not None and service_state.is_alive(state):
        for listener in state.listeners:
            if listener.problem:
                yield warn("listeners", listener.problem, "it is tried again every 3 s")
        names = [each.name for each in state.listeners if not each.problem]
        yield ok("listeners", f"listening: {', '.join(names)}")
        return
    number = config.endpoint_port(config.port)
    address = f"{config.host}:{number}"
    problem = _bind_problem(config.host, number)
    if problem == errno.EADDRINUSE and not _is_gpucoord(config):
        text = f"{address}, for clients of language models, is taken by another program"
        yield warn("listeners", text, "stop it, or set models_port")


def _bind_problem(host: str, number: int) -> int | None:
    try:
        family, kind, proto, _, target = socket.getaddrinfo(
            host, number, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, proto) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(target)
    except socket.gaierror:
        return errno.EADDRNOTAVAIL
    except OSError as error:
        return error.errno
    return None


def _is_gpucoord(config: Config) -> bool:
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(config.host, config.host)  # noqa: S104
    try:
        with urllib.request.urlopen(f"http://{host}:{config.port}/healthz", timeout=1) as answer:
            text = answer.read(LONGEST_ANSWER)
    except urllib.error.HTTPError as error:
        text = error.read(LONGEST_ANSWER)
    except (OSError, http.client.HTTPException):
        return False
    with suppress(ValueError):
        body = input_rules.parse_json(text)
        return isinstance(body, dict) and "loops" in body
    return False


# Thresholds without effect, and guards that keep jobs from starting.

REMEDY = "delete files there, or change the thresholds of the policy disk on /rules/"


def disks(config: Config) -> Iterator[Finding]:
    """Whether jobs wait for space of the data folder or of the folder of checkpoints."""
    policy = _policy(config)
    warnings = list(problems(config, policy))
    if not warnings:
        yield ok("disk guard", f"no job waits for disk space (block_pct = {policy.block_pct:g})")
    for text in warnings:
        yield warn("disk guard", text, REMEDY)


def retired_thresholds(config: Config) -> Iterator[Finding]:
    """Values of former thresholds in the settings or the database."""
    in_settings = former.retired(config.policy)
    sentences: list[str] | None = _from_rows(config, lambda rows: rows.retired_values())
    if sentences is None:
        sentences = [former.sentence(in_settings, former.IN_SETTINGS)] if in_settings else []
    for text in sentences:
        yield warn(
            "thresholds",
            text,
            "remove it there; in the admin, save its policy under Thresholds or delete its values",
        )


def problems(config: Config, policy: DiskPolicy) -> Iterator[str]:
    """A sentence for each file system for whose space jobs wait, or soon will."""
    seen = set()
    for folder in (config.data, config.checkpoints):
        if folder is None:
            continue
        place = existing(folder)
        if (device := place.stat().st_dev) in seen:
            continue
        seen.add(device)
        reading = disk_space.read(place)
        space = DiskSpace(
            device=str(device),
            used_bytes=reading.used_bytes,
            available_bytes=reading.available_bytes,
        )
        stage = level(space, policy, DiskLevel.NORMAL)
        if stage is DiskLevel.BLOCKED:
            yield sentence(str(folder), space, stage, policy)
        elif is_near(space, policy):
            text = sentence(str(folder), space, DiskLevel.NORMAL, policy)
            yield f"{text} Jobs with a folder there will soon wait."


def _policy(config: Config) -> DiskPolicy:
    """The thresholds in force; without tables, those of the settings."""
    stored: DiskPolicy | None = _from_rows(config, lambda rows: rows.current(DiskPolicy))
    if stored is not None:
        return stored
    layers = [policies.profile_layer(config.profile, [PROFILES]), Layer(FILE, config.policy)]
    made: DiskPolicy = policies.in_force(DiskPolicy, "disk", layers)
    return made


def _from_rows(config: Config, read: Callable[[Any], T]) -> T | None:
    """The result of `read`, which gets the module of thresholds in force; None without tables."""
    # Made at the first start, with the tables.
    if not apps.ready or not (config.data / "secret_key").exists():
        return None
    from django.db import DatabaseError

    from monitor.thresholds import rows

    try:
        return read(rows)
    except DatabaseError:
        return None
