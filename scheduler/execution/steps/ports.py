"""A block of ports for each attempt, which no other open attempt of the host has.

It is stored with the attempt, and so freed when the attempt ends.
"""

from __future__ import annotations

from django.db import IntegrityError, transaction

from scheduler.execution import probes as probe
from scheduler.execution.policy import BoundsPolicy, port_blocks
from scheduler.models import Attempt

ADDRESS = "127.0.0.1"


class NoPorts(OSError):
    """All blocks are taken. The job starts when one is free."""


def assigned(attempt: Attempt, policy: BoundsPolicy) -> range:
    """The ports of an attempt; chosen and stored at the first call. Empty: jobs get none.

    Raises NoPorts.
    """
    if attempt.port is not None:
        return range(attempt.port, attempt.port + attempt.ports)
    if not policy.ports or attempt.job.model_service_id is not None:
        return range(0)
    still_open = Attempt.objects.filter(host=attempt.host, ended_at=None, port__isnull=False)
    rows = still_open.values_list("port", "ports")
    taken = [range(port, port + count) for port, count in rows if port is not None]
    # Each job begins elsewhere, so that connections of the last one have time to close.
    blocks = port_blocks(policy, [*taken, probe.ephemeral()], start=attempt.pk)
    for block in blocks:
        if probe.are_free(block) and _store(attempt, block):
            return block
    raise NoPorts(
        f"No block of {policy.ports} ports is free from {policy.first_port} to {policy.last_port}."
        " Jobs wait until one is; operators change the range in the policy bounds."
    )


def _store(attempt: Attempt, block: range) -> bool:
    try:
        with transaction.atomic():
            Attempt.objects.filter(pk=attempt.pk).update(port=block.start, ports=len(block))
    except IntegrityError:
        return False
    attempt.port, attempt.ports = block.start, len(block)
    return True


def with_variables(env: dict[str, str], block: range) -> dict[str, str]:
    """The environment with the ports. Variables of torch are only set unless the user did.

    torchrun reads its port from PET_MASTER_PORT.
    """
    if not block:
        return env
    first = str(block.start)
    usual = {"MASTER_ADDR": ADDRESS, "MASTER_PORT": first, "PET_MASTER_PORT": first}
    return {**usual, **env, "GPUCOORD_PORT": first, "GPUCOORD_PORTS": str(len(block))}
