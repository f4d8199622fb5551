"""Policy: the decisions that an engine takes instead of gpucoord, in words."""

from __future__ import annotations

from scheduler.execution.engines.facts import Capabilities

_WORDS = (
    ("order", "order"),
    ("fair_share", "fair share"),
    ("quotas", "quotas"),
    ("windows", "time windows"),
    ("preemption", "preemption"),
)


def decided(capabilities: Capabilities) -> str:
    """As "order, fair share and quotas"; "" = gpucoord decides all of them."""
    words = [word for name, word in _WORDS if getattr(capabilities, name)]
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))


def sentence(title: str, host: str, capabilities: Capabilities) -> str:
    """About the jobs that a host hands to this engine; "" = nothing is to be said."""
    words = decided(capabilities)
    if not words:
        return ""
    return (
        f"{title} decides {words} of the jobs that {host} hands to it."
        " The quotas, shares and time windows of gpucoord do not apply to them."
    )
