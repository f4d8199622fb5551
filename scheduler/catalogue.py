"""Policy: the policies of the scheduler by their stable names, and the presets of each profile.

A policy is a frozen dataclass of thresholds. The defaults are those of the profile "server".
"""

from __future__ import annotations

from typing import Any

from scheduler.disk.policy import CleaningPolicy, DiskPolicy
from scheduler.execution.policy import BoundsPolicy
from scheduler.jobs.notifications.policy import NotificationPolicy
from scheduler.jobs.policy import RetentionPolicy, RetryPolicy
from scheduler.language_models.model_services.policy import EvictionPolicy
from scheduler.language_models.prompts.policy import PromptPolicy
from scheduler.limits.quotas.policy.quotas import QuotaPolicy
from scheduler.limits.throttle.policy.pressure import PressurePolicy, UtilisationPolicy
from scheduler.limits.throttle.policy.throttle import AdaptivePolicy, ModePolicy
from scheduler.limits.time_windows.policy import WindowPolicy
from scheduler.queue.planner.capacity import HostPolicy
from scheduler.queue.planner.order import OrderPolicy
from scheduler.queue.planner.preemption import PreemptionPolicy
from scheduler.queue.planner.sizing import SizingPolicy
from scheduler.submission.batches.policy import BatchPolicy
from scheduler.submission.idle_work.policy import IdlePolicy, IdleWorkPolicy
from scheduler.terminals.policy import InteractivePolicy

POLICIES: dict[str, type[Any]] = {
    "adaptive": AdaptivePolicy,
    "batches": BatchPolicy,
    "bounds": BoundsPolicy,
    "cleaning": CleaningPolicy,
    "disk": DiskPolicy,
    "eviction": EvictionPolicy,
    "host": HostPolicy,
    "idle": IdlePolicy,
    "interactive": InteractivePolicy,
    "idle_work": IdleWorkPolicy,
    "keeping": RetentionPolicy,
    "mode": ModePolicy,
    "notifications": NotificationPolicy,
    "order": OrderPolicy,
    "preemption": PreemptionPolicy,
    "pressure": PressurePolicy,
    "prompts": PromptPolicy,
    "quotas": QuotaPolicy,
    "retries": RetryPolicy,
    "sizing": SizingPolicy,
    "utilisation": UtilisationPolicy,
    "windows": WindowPolicy,
}

# Values that differ from the defaults, by profile and policy.
PROFILES: dict[str, dict[str, dict[str, Any]]] = {
    "desktop": {},
    "server": {},
    "coordinator": {
        "disk": {"warn_pct": 50.0, "clean_pct": 55.0, "block_pct": 60.0},
        "cleaning": {"until_pct": 50.0, "copy_logs": True},
        "pressure": {"gpu_busy_pct": 50.0, "gpu_calm_pct": 40.0},
        "utilisation": {"low_pct": 30.0, "high_pct": 50.0},
    },
}
# Headings of the page of rules, and the title of each policy. Policies without a topic come last.
TOPICS: dict[str, dict[str, str]] = {
    "Queue order and placement": {
        "quotas": "Fair share and quotas",
        "order": "Order of the queue",
        "windows": "Time windows",
        "preemption": "Preemption",
        "retries": "Retries",
        "host": "Host capacity",
        "sizing": "Learned GPU memory",
    },
    "Load control": {
        "pressure": "Deferral under load",
        "utilisation": "Utilisation target",
        "adaptive": "Shares on GPUs in use",
        "mode": "Cooperative and defensive mode",
        "idle": "Idle GPUs and CPUs",
        "idle_work": "Idle work",
    },
    "Language models": {
        "eviction": "Unloading of models",
        "prompts": "Prompts",
        "batches": "Exclusive batches",
    },
    "Limits and retention of jobs": {
        "bounds": "Resource limits of jobs",
        "interactive": "Interactive jobs",
        "keeping": "Retention of jobs",
        "disk": "Disk space",
        "cleaning": "Clean-up of disks",
    },
    "Notifications": {
        "notifications": "Notifications to users",
    },
}
