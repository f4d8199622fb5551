"""`gpucoord check`: the engine that runs the jobs."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from gpucoord_site.cli.check.report import Finding, fail, ok, warn
from gpucoord_site.config.settings import Config
from scheduler.execution.engines.facts import EngineAway
from scheduler.execution.engines.slurm import SlurmEngine, engine_of


def engine(config: Config) -> Iterator[Finding]:
    """Nothing for jobs that gpucoord runs itself."""
    if config.engine == "none":
        yield ok("engine", "none: this host is monitored, and runs no new jobs")
    elif config.engine == "slurm":
        yield from _slurm(config)


def _slurm(config: Config) -> Iterator[Finding]:
    made = engine_of(config)
    if os.geteuid() != 0 or config.run_as == "service":
        yield fail(
            "engine",
            "Slurm gets each job from the account of its owner, which needs root",
            "run gpucoord as root, without run_as = service",
        )
    version = made.version()
    if not version:
        yield fail("engine", "squeue can't be run", "install slurm-client, or set slurm_commands")
        return
    yield from _answer(made, version)
    yield from _readable("slurm_python", Path(made.python), "set slurm_python")
    yield from _readable("the installation", Path(made.root), "install it outside of /root")
    yield from _readable("the parent of the data folder", config.data.parent, "set data")


def _answer(made: SlurmEngine, version: str) -> Iterator[Finding]:
    look = made.look()
    if not look.is_answer:
        yield fail("engine", f"{version} does not answer: {look.problem}", "start slurmctld")
        return
    try:
        nodes = made.nodes()
    except EngineAway as error:
        yield warn("engine", f"{version} does not list its nodes: {error}")
        return
    gpus = sum(node.gpus or 0 for node in nodes)
    yield ok("engine", f"{version}: {len(nodes)} nodes with {gpus} GPUs, {len(look.tasks)} jobs")
    if not gpus:
        yield warn("engine", "no node has GPUs", "declare them in gres.conf and slurm.conf")


def _readable(name: str, path: Path, todo: str) -> Iterator[Finding]:
    """Whether the accounts of jobs can reach a path on this host."""
    closed = [
        folder
        for folder in (*path.resolve().parents, path.resolve())
        if folder.is_dir() and not folder.stat().st_mode & stat.S_IXOTH
    ]
    if closed:
        yield fail("engine", f"other accounts can't enter {closed[-1]}, which {name} needs", todo)
