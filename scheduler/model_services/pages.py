"""What pages and REST show of model services."""

from __future__ import annotations

from collections.abc import Sequence

from monitor.models import Gpu
from scheduler.facts.model_services import InstanceState
from scheduler.models import ModelInstance, ModelService

# In the order in which one state stands for the service.
ORDER = (
    InstanceState.READY,
    InstanceState.BOOTING,
    InstanceState.DRAINING,
    InstanceState.SLEEPING,
    InstanceState.COOLING,
)


def summary(row: ModelService, opened: Sequence[ModelInstance]) -> str:
    """One word for the whole service: the best state of its instances, busy, stopped or failed."""
    states = {one.state for one in opened}
    if any(one.is_busy for one in opened):
        return "busy"
    for state in ORDER:
        if state.value in states:
            return state.value
    if not row.enabled:
        return "disabled"
    return InstanceState.FAILED.value if row.problem else InstanceState.STOPPED.value


def gpu_numbers() -> dict[str, int]:
    """The number of each GPU by its UUID."""
    return dict(Gpu.objects.values_list("uuid", "index"))
