"""Policy: fair share. What somebody used fades, and who had less than their part gets more now.

U = b * U + (1 - b) * rate / capacity, b = 0.5 ^ (time / half-life): exact for steps of any length.
Divided by the capacity, so that using an idle machine costs little. At a job's start a part of it
is charged at once. Who is next follows from the targets: P = max(0, W + k * (W - U)), normalised.
"""

from __future__ import annotations

from collections.abc import Mapping

# What those without a share of their own get at least together, when shares add up to all.
LEAST_REST = 0.05
# So little is forgotten: a millionth of the machine.
NOTHING = 1e-6


def kept(seconds: float, half_life_s: float) -> float:
    """The part of past use that still counts after so many seconds."""
    return float(0.5 ** (max(0.0, seconds) / half_life_s))


def advance(
    usage: Mapping[str, float], rates: Mapping[str, float], seconds: float, half_life_s: float
) -> dict[str, float]:
    """Usage by owner after they took `rates` (parts of the capacity) for so many seconds."""
    b = kept(seconds, half_life_s)
    owners = usage.keys() | rates.keys()
    return {o: b * usage.get(o, 0.0) + (1 - b) * rates.get(o, 0.0) for o in sorted(owners)}


def entry(part: float, entry_s: float, half_life_s: float) -> float:
    """What the start of a job adds that takes this part of the capacity."""
    return (1 - kept(entry_s, half_life_s)) * part


def factor(usage: float, share: float) -> float:
    """The fair-share factor that people see: 1 = used nothing, 0.5 = exactly their share."""
    if share <= 0:
        return 1.0 if usage <= 0 else 0.0
    return float(2.0 ** (-usage / share))


def weights(shares: Mapping[str, float | None]) -> dict[str, float]:
    """The part of all that each gets while all of them want something; they add up to 1.

    A share is in percent. Those without one divide what the others' leave.
    """
    agreed = {owner: share / 100 for owner, share in shares.items() if share is not None}
    rest = len(shares) - len(agreed)
    left = max(LEAST_REST, 1 - sum(agreed.values())) if rest else 0.0
    found = {owner: agreed.get(owner, left / rest if rest else 0.0) for owner in shares}
    total = sum(found.values())
    return {owner: part / total if total else 1 / len(found) for owner, part in found.items()}


def targets(
    weights: Mapping[str, float], usage: Mapping[str, float], catch_up: float
) -> dict[str, float]:
    """The part that each should have now; `weights` are of those who want something."""
    wished = {
        owner: max(0.0, weight + catch_up * (weight - usage.get(owner, 0.0)))
        for owner, weight in weights.items()
    }
    total = sum(wished.values())
    return {owner: part / total for owner, part in wished.items()} if total else dict(weights)
