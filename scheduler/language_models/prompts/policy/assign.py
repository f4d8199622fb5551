"""Policy: which instance takes a request, and what a request that must wait waits for.

An instance below its concurrency takes the request, one without requests first. Otherwise an
instance that is booting will take it, or another one is started, or it waits for a place.
"""

from __future__ import annotations

from collections.abc import Mapping

from scheduler.facts.prompts import Assignment, Instance, Request, Service, Wait, WaitCode


def assign(
    request: Request,
    service: Service,
    in_flight: Mapping[int, int],
    *,
    position: int = 1,
    reserved: int = 0,
) -> Assignment:
    """in_flight: requests of each instance by its id. reserved: places kept for other users."""
    instance = least_busy(request, service, in_flight)
    free = free_places(service, in_flight)
    if instance is not None and free > reserved:
        return Assignment(instance=instance)
    wait = _wait(request, service, position, is_reserved=instance is not None)
    return Assignment(wait=wait, boots=instance is None and needs_boot(service))


def least_busy(request: Request, service: Service, in_flight: Mapping[int, int]) -> Instance | None:
    """The ready instance with a free place and the fewest requests; None: there is none.

    An instance that failed with this request is the last choice.
    """
    open_ = [
        instance
        for instance in service.ready
        if in_flight.get(instance.id, 0) < service.concurrency
    ]
    return min(
        open_,
        key=lambda instance: (
            instance.id in request.tried,
            in_flight.get(instance.id, 0),
            instance.id,
        ),
        default=None,
    )


def free_places(service: Service, in_flight: Mapping[int, int]) -> int:
    places = (service.concurrency - in_flight.get(instance.id, 0) for instance in service.ready)
    return sum(max(0, free) for free in places)


def needs_boot(service: Service) -> bool:
    """Whether to ask for another instance; a boot under way, or another host, is enough."""
    is_booting = any(instance.is_booting for instance in service.instances)
    return (
        not is_booting and not service.elsewhere and len(service.instances) < service.max_instances
    )


def _wait(request: Request, service: Service, position: int, *, is_reserved: bool) -> Wait:
    ready, booting = (
        service.ready,
        [instance for instance in service.instances if instance.is_booting],
    )
    known_s = [instance.ready_in_s for instance in booting if instance.ready_in_s is not None]
    ready_in_s = min(known_s, default=None)
    if is_reserved:
        code = WaitCode.PLACE_RESERVED
    elif not service.is_enabled:
        code = WaitCode.MODEL_DISABLED
    elif ready:
        code = WaitCode.INSTANCES_BUSY
    elif service.elsewhere:
        code = WaitCode.MODEL_ELSEWHERE
    elif known_s:
        code = WaitCode.MODEL_BOOTS
    elif service.batch is not None:
        code = WaitCode.BATCH_EXCLUSIVE
    elif service.problem:
        code = WaitCode.MODEL_FAILED
    else:
        code = WaitCode.MODEL_WAITS_FOR_GPU
    reasons = {
        WaitCode.MODEL_FAILED: service.problem,
        WaitCode.MODEL_ELSEWHERE: service.elsewhere,
        WaitCode.BATCH_EXCLUSIVE: f"batch {service.batch}",
    }
    return Wait(
        code=code,
        model=service.name,
        position=position,
        instances=len(ready),
        ready_in_s=ready_in_s,
        reason=reasons.get(code, ""),
    )
