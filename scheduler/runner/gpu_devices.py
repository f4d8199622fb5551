"""Edge: the device files of GPUs, and whether NVIDIA's MPS daemon serves this machine."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

INFORMATION = Path("/proc/driver/nvidia/gpus")
MAJOR = 195
MPS_PIPES = "/tmp/nvidia-mps"  # noqa: S108 - where NVIDIA's own programs look


def minors(root: Path = INFORMATION) -> dict[str, int]:
    """PCI address -> minor number of the GPU's /dev/nvidiaN; {} without that driver."""
    found: dict[str, int] = {}
    with suppress(OSError):
        for folder in root.iterdir():
            with suppress(OSError, ValueError):
                for line in (folder / "information").read_text().splitlines():
                    name, _, value = line.partition(":")
                    if name.strip() == "Device Minor":
                        found[short(folder.name)] = int(value)
    return found


def short(pci_id: str) -> str:
    """The same for 00000000:3B:00.0 and 0000:3b:00.0."""
    domain, _, rest = pci_id.lower().partition(":")
    return f"{int(domain, 16):x}:{rest}"


def mps_pipes() -> str | None:
    """Where the MPS daemon is spoken to; None when none is there."""
    folder = os.environ.get("CUDA_MPS_PIPE_DIRECTORY") or MPS_PIPES
    with suppress(OSError):
        if stat.S_ISFIFO(Path(folder, "control").stat().st_mode):
            return folder
    return None
