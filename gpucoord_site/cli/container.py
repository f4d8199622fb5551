"""`gpucoord container run IMAGE`: a container of Podman as a part of the job. Needs no Django.

It stays in the job's cgroup, so that the job's limits hold for it and it ends with the job.
"""

from __future__ import annotations

import os
import shutil
from argparse import REMAINDER, Namespace
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gpucoord_site.cli.commands import Argument, arg, command, complain

LABEL = "gpucoord.job"
CDI_GPU = "nvidia.com/gpu"
OUTSIDE = (
    "gpucoord container run starts a container inside a job."
    " Submit it: gpucoord submit -- gpucoord container run IMAGE COMMAND"
)
NO_PODMAN = "podman is not installed on this server, or not in PATH ({path}). Ask an operator."
# Variables that tell a program in a container about its job.
PASSED_ON = (
    "GPUCOORD_JOB_ID",
    "GPUCOORD_ATTEMPT",
    "GPUCOORD_ARRAY_INDEX",
    "GPUCOORD_GRACE_S",
    "GPUCOORD_YIELD_FILE",
    "GPUCOORD_CHECKPOINT_DIR",
    "GPUCOORD_PROGRESS_FILE",
    "GPUCOORD_RESULT_FILE",
)


class Run(Argument):
    """The only action, `run`, which has arguments of its own."""

    def add_to(self, parser: Any) -> None:
        actions = parser.add_subparsers(dest="action", required=True, metavar="run")
        run = actions.add_parser(
            "run",
            help="run a command in a container, inside a job",
            usage="gpucoord container run [--podman OPTION] IMAGE [COMMAND [ARGUMENT ...]]",
            description="The job's GPUs (by CDI), the current folder and the folder of checkpoints"
            " are available inside. The container ends with the job.",
        )
        about = "an option of `podman run`, such as --podman=--network=none; may be repeated"
        for argument in (
            arg("--podman OPTION", about, action="append", default=[]),
            arg("image IMAGE", "image to run"),
            arg("command COMMAND", "command in the container", nargs=REMAINDER),
        ):
            argument.add_to(run)


@command("container", "Start a container of Podman as a part of a job.", Run((), {}))
def container(options: Namespace) -> int:
    """Becomes podman, whose exit code is the container's; returns 125 when it can't."""
    if "GPUCOORD_JOB_ID" not in os.environ:
        return complain(OUTSIDE)
    podman = shutil.which("podman")
    if podman is None:
        return complain(NO_PODMAN.format(path=os.environ.get("PATH", "")))
    words = arguments(os.environ, os.getcwd(), options.podman, options.image)  # noqa: PTH109
    try:
        os.execv(podman, [podman, *words, *options.command])  # noqa: S606
    except OSError as error:
        return complain(f"{podman} can't be started: {error.strerror}.")


def arguments(
    environ: Mapping[str, str], folder: str, more: Sequence[str], image: str
) -> list[str]:
    """The arguments of podman up to the image. `folder` is mounted under its own path."""
    return [
        "run",
        "--rm",
        f"--label={LABEL}={environ['GPUCOORD_JOB_ID']}",
        # The container stays in the cgroup that podman was started in: the job's.
        "--cgroups=disabled",
        *_gpus(environ.get("CUDA_VISIBLE_DEVICES", "")),
        *(f"--env={name}" for name in PASSED_ON if name in environ),
        *_folders(environ, folder),
        f"--workdir={folder}",
        *more,
        image,
    ]


def _gpus(visible: str) -> Iterator[str]:
    """One CDI device for each GPU of the job; none for a job without a GPU."""
    for uuid in filter(None, visible.split(",")):
        yield f"--device={CDI_GPU}={uuid}"


def _folders(environ: Mapping[str, str], folder: str) -> Iterator[str]:
    yield f"--volume={folder}:{folder}"
    if checkpoint := environ.get("GPUCOORD_CHECKPOINT_DIR"):
        yield f"--volume={checkpoint}:{checkpoint}"
    if progress := environ.get("GPUCOORD_PROGRESS_FILE"):
        given = os.path.dirname(progress)  # noqa: PTH120
        yield f"--volume={given}:{given}"
    if yield_file := environ.get("GPUCOORD_YIELD_FILE"):
        above = os.path.dirname(yield_file)  # noqa: PTH120
        yield f"--volume={above}:{above}:ro"
