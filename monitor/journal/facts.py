"""Facts: the names of all events, by what they are about. A name never changes."""

from __future__ import annotations

import re
from enum import StrEnum


class EvictionReason(StrEnum):
    """The reasons to end a running job or model on a GPU: the label `reason` of a metric."""

    PREEMPTION = "preemption"
    MODEL = "model"
    OWNER_PRESENT = "owner_present"
    WINDOW_ENDS = "window_ends"
    BATCH_EXCLUSIVE = "batch_exclusive"
    GPU_THROTTLED = "gpu_throttled"
    GPU_LOST = "gpu_lost"
    REQUEUED = "requeued"
    OTHER = "other"

    @classmethod
    def of_code(cls, code: str) -> EvictionReason:
        """Of the code of a request to leave, such as OwnerPresent. OTHER: an unknown code."""
        name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", code).lower()
        return cls(name) if name in cls.__members__.values() else cls.OTHER


EVENTS: dict[str, tuple[str, ...]] = {
    "jobs": (
        "BATCH_SUBMITTED",
        "BATCH_STARTED",
        "BATCH_PROGRESS",
        "BATCH_ENDED",
        "BATCH_EXCLUSIVE",
        "IDLE_WORK_STARTED",
        "JOB_SUBMITTED",
        "JOB_STARTED",
        "JOB_RUNNER_REPLACED",
        "JOB_PROCESS_REFUSED",
        "JOB_STOPPING",
        "JOB_HELD",
        "JOB_RELEASED",
        "JOB_CHANGED",
        "JOB_REQUEUED",
        "JOB_YIELDING",
        "JOB_MAY_STAY",
        "JOB_PREEMPTED",
        "JOB_EVICTED",
        "JOB_FINISHED",
        "LIMIT_REQUESTED",
    ),
    "hosts": (
        "HOST_JOINED",
        "HOST_CHANGED",
        "HOST_DOWN",
        "HOST_REMOVED",
        "HOST_SILENT",
        "HOST_RETURNED",
        "ENGINE_UNAVAILABLE",
        "ENGINE_AVAILABLE",
    ),
    "GPUs": (
        "GPU_FOUND",
        "GPU_LOST",
        "GPU_STATE_CHANGED",
        "GPU_HEALTHY",
        "GPU_THROTTLED",
        "GPU_UNHEALTHY",
        "GPU_PAUSED",
        "GPU_RESUMED",
        "GPU_QUARANTINED",
        "GPU_QUARANTINE_OVER",
        "GPU_LOCK_UNUSABLE",
        "GPU_LOCK_USABLE",
        "GPU_XID",
        "GPU_ECC_CORRECTED",
        "GPU_REPAIR_PENDING",
        "GPU_SPINNING",
        "GPU_OVER_POWER",
        "GPU_CALLS_FAILING",
        "GPU_CALLS_ANSWERED",
        "ORPHANED_MEMORY",
        "OWNER_PRESENT",
        "OWNER_GONE",
    ),
    "models": (
        "MODEL_BOOTING",
        "MODEL_READY",
        "MODEL_FAILED",
        "MODEL_UNLOADED",
        "MODEL_EVICTED",
        "MODEL_ASLEEP",
        "SLEEP_LEFT_MEMORY",
    ),
    "incidents": (
        "INCIDENT_OPENED",
        "INCIDENT_ONGOING",
        "INCIDENT_CLOSED",
        "ENFORCEMENT_DRY_RUN",
        "ENFORCEMENT_ACTED",
        "ENFORCEMENT_UNDONE",
        "ENFORCEMENT_REFUSED",
    ),
    "resources": (
        "DISK_SPACE_LOW",
        "DISK_SPACE_OK",
        "RESOURCE_CONSTRAINT",
        "RESOURCE_CONSTRAINT_OVER",
        "NODE_OVERLOADED",
        "IDLE_RESOURCE_DETECTED",
        "IDLE_WHILE_JOBS_WAIT",
        "BACKPRESSURE_ACTIVATED",
        "BACKPRESSURE_RELEASED",
        "MODE_CHANGED",
    ),
    "windows": (
        "WINDOW_ASKED",
        "WINDOW_APPROVED",
        "WINDOW_DECLINED",
        "WINDOW_WITHDRAWN",
    ),
    "gpucoord": (
        "NVML_UNAVAILABLE",
        "NVML_AVAILABLE",
        "NVML_MONITORING_OFF",
        "NVML_HUNG",
        "NVML_ANSWERS",
        "LISTENER_UNUSABLE",
        "LISTENER_USABLE",
        "LOOP_FAILED",
        "ALERT_FAILED",
        "ALERT_WORKS",
        "REPORT_FAILED",
    ),
}


def event_kinds() -> frozenset[str]:
    return frozenset(kind for kinds in EVENTS.values() for kind in kinds)


def label(kind: str) -> str:
    """GPU_STATE_CHANGED -> GPU state changed."""
    first, *rest = kind.split("_")
    capitals = {"GPU", "NVML", "XID", "ECC"}
    return " ".join(
        [first if first in capitals else first.capitalize()]
        + [word if word in capitals else word.lower() for word in rest]
    )
