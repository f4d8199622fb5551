"""`gpucoord check`: the driver, NVML and the GPUs that respond."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from gpucoord_site.cli.check.report import Finding, fail, ok, warn
from gpucoord_site.config.settings import Config
from monitor.facts.readings import GpuSweep, Health

GIB = 1024**3


def gpus(config: Config) -> Iterator[Finding]:
    """The GPUs that respond. A missing driver is a failure only if it is required."""
    if config.probe == "simulated":
        text = f"simulated ({config.simulated_gpus}): every figure is made up"
        yield warn("GPUs", text, "unset GPUCOORD_PROBE to see the real ones")
    elif config.probe == "none":
        yield ok("GPUs", "not looked at (probe = none); jobs without a GPU run")
    else:
        yield from _real(config)


def _real(config: Config) -> Iterator[Finding]:
    from monitor.gpus.sampling.probes.nvml.probe import detect

    sweep, versions = detect(datetime.now(UTC))
    if sweep.problem and not sweep.gpus:
        level = fail if config.needs_nvml else warn
        yield level("GPUs", sweep.problem, sweep.remedy or "")
        return
    yield ok("driver", ", ".join([f"kernel module {kernel_module() or 'unknown'}", *versions]))
    yield from answering(sweep)


def answering(sweep: GpuSweep) -> Iterator[Finding]:
    """`2 × NVIDIA H100 80GB HBM3 (80 GiB)`, and each one that does not answer well."""
    kinds = Counter(
        f"{gpu.name or 'unknown'}"
        + (f" ({gpu.memory_total_bytes / GIB:.0f} GiB)" if gpu.memory_total_bytes else "")
        for gpu in sweep.gpus
    )
    yield ok("GPUs", ", ".join(f"{count} × {kind}" for kind, count in kinds.items()) or "none")
    for gpu in sweep.gpus:
        if gpu.health is not Health.OK:
            yield warn(
                "GPUs", f"GPU {gpu.index} is {gpu.health}: {gpu.problem or 'no reason given'}"
            )
        elif gpu.failed_calls:
            yield warn("GPUs", f"GPU {gpu.index}: {'; '.join(gpu.failed_calls)}")
    if sweep.unnamed:
        yield warn("GPUs", sweep.problem or "a GPU has no name", sweep.remedy or "")


def kernel_module(version_file: Path = Path("/proc/driver/nvidia/version")) -> str | None:
    """The version of the loaded NVIDIA kernel module; None when there is none."""
    try:
        match = re.search(r"Kernel Module.{0,200}?\s(\d+\.\d+(?:\.\d+)?)", version_file.read_text())
    except OSError:
        return None
    return match[1] if match else None
