"""Edge: what this machine has to keep jobs within their bounds, in words. Needs no Django."""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.policy.bounds import BoundsPolicy
from scheduler.runner.cgroup_places import Place

KINDS = {"v1": "cgroup version 1", "v2": "cgroup version 2", "systemd": "a scope of systemd"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Mean:
    """One of them. `active`: jobs have it."""

    name: str
    active: bool
    text: str


def found(
    place: Place, *, minors: int, mps: str | None, locks: str | None, policy: BoundsPolicy
) -> list[Mean]:
    """What a look at the machine showed, in words."""
    return [
        _cgroup(place, policy),
        _hiding(place, minors, policy),
        _share(place, mps, policy),
        Mean(
            name="mps",
            active=bool(mps and policy.mps),
            text=f"its daemon is spoken to in {mps}" if mps else "no daemon of it runs here",
        ),
        Mean(
            name="locks",
            active=locks is not None,
            text=f"{locks}/gpu.lock, gpu0.lock, …" if locks else "none",
        ),
    ]


def _cgroup(place: Place, policy: BoundsPolicy) -> Mean:
    if not place.kind:
        text = f"a job is its process tree alone ({place.problem})"
    elif not policy.cgroup:
        text = f"{KINDS[place.kind]} would work, but the policy says no"
    else:
        limits = [name for name in ("cpu", "memory", "pids") if name in place.can]
        kill = "an exact kill" if {"kill", "freeze"} & place.can else "a kill by process"
        text = f"{KINDS[place.kind]}: limits of {', '.join(limits) or 'nothing'}, {kill}"
    return Mean(name="cgroup", active=bool(place.kind and policy.cgroup), text=text)


def _hiding(place: Place, minors: int, policy: BoundsPolicy) -> Mean:
    works = bool({"devices", "bpf"} & place.can)
    active = works and bool(minors) and policy.hide_gpus and policy.cgroup
    if active:
        how = "the cgroup's list of devices" if "devices" in place.can else "a BPF program"
        text = f"by {how}; CUDA_VISIBLE_DEVICES is set too"
    else:
        lacks = "no device files of GPUs are here" if works else "that needs root and a cgroup"
        text = f"by CUDA_VISIBLE_DEVICES alone, which a job can change ({lacks})"
    return Mean(name="hiding", active=active, text=text)


def _share(place: Place, mps: str | None, policy: BoundsPolicy) -> Mean:
    if mps and policy.mps:
        how = "by MPS"
    elif "freeze" in place.can and policy.cgroup:
        how = f"by freezing the job for parts of {policy.period_s:g} s"
    else:
        how = f"by SIGSTOP for parts of {policy.period_s:g} s, which the job's parent may notice"
    text = how if policy.cap_share else "the policy says no"
    return Mean(name="share", active=policy.cap_share, text=text)
