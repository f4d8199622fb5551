from __future__ import annotations

from scheduler.models.attempts import Attempt, GpuHold, YieldRequest
from scheduler.models.batches import Batch, BatchItem, ExclusiveRun
from scheduler.models.disk import CleaningRun, WatchedDisk
from scheduler.models.engine_tasks import EngineStatus, EngineTask
from scheduler.models.hosts import (
    HostCapability,
    HostForecast,
    LockRefusal,
    ModeState,
    PlanVersion,
    ThrottleState,
)
from scheduler.models.idle_work import IdleChoice, IdleTemplate
from scheduler.models.jobs import Job, JobDependency, JobInput, SubmissionKey
from scheduler.models.model_services import ModelBoot, ModelHour, ModelInstance, ModelService
from scheduler.models.notifications import (
    BrowserNotice,
    NotificationCursor,
    NotificationSettings,
)
from scheduler.models.prompts import ModelUse, Prompt
from scheduler.models.quotas import DailyGpuUsage, HostCapacity, Quota, UsageShare
from scheduler.models.scripts import ScriptDefinition
from scheduler.models.sizing import AttemptUse
from scheduler.models.views import JobPreset, SavedView
from scheduler.models.windows import TimeWindow

__all__ = [
    "Attempt",
    "AttemptUse",
    "Batch",
    "BatchItem",
    "BrowserNotice",
    "CleaningRun",
    "DailyGpuUsage",
    "EngineStatus",
    "EngineTask",
    "ExclusiveRun",
    "GpuHold",
    "HostCapability",
    "HostCapacity",
    "HostForecast",
    "IdleChoice",
    "IdleTemplate",
    "Job",
    "JobDependency",
    "JobInput",
    "JobPreset",
    "LockRefusal",
    "ModeState",
    "ModelBoot",
    "ModelHour",
    "ModelInstance",
    "ModelService",
    "ModelUse",
    "NotificationCursor",
    "NotificationSettings",
    "PlanVersion",
    "Prompt",
    "Quota",
    "SavedView",
    "ScriptDefinition",
    "SubmissionKey",
    "ThrottleState",
    "TimeWindow",
    "UsageShare",
    "WatchedDisk",
    "YieldRequest",
]
