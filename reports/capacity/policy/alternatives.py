"""Other hardware to replay with: one GPU more or less, or a GPU split into MIG instances.

MIG layouts and slices are those of NVIDIA's MIG user guide. A slice's memory is its part of the
GPU's memory less about 3 % that the driver keeps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from monitor.facts.formats import GIB
from monitor.gpus.policy import capability
from reports.capacity.facts import CapacityGpu

# Compute slices and memory slices of the whole GPU, by model.
MIG_MODELS = {
    "A30": (4, 4),
    "A100": (7, 8),
    "H100": (7, 8),
    "H200": (7, 8),
    "B200": (7, 8),
}
# (compute slices, memory slices) of each instance.
LAYOUTS: dict[int, tuple[tuple[tuple[int, int], ...], ...]] = {
    4: (((2, 2), (2, 2)), ((1, 1),) * 4),
    7: (((4, 4), (3, 4)), ((2, 2), (2, 2), (3, 4)), ((1, 1),) * 7),
}
USABLE = 0.97
# More kinds of GPUs than these are not tried.
MOST_KINDS = 4
NEW = "what-if"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """GPUs as they might be. slowness: by GPU, how much longer work takes at worst."""

    kind: str
    title: str
    gpus: tuple[CapacityGpu, ...]
    slowness: dict[str, float]
    replaced: str = ""


def changes(gpus: Sequence[CapacityGpu]) -> list[Change]:
    """One GPU more and one less of each model, and each MIG layout of one GPU of each model."""
    changes: list[Change] = []
    for model in sorted({gpu.model for gpu in gpus})[:MOST_KINDS]:
        same = [gpu for gpu in gpus if gpu.model == model]
        last = max(same, key=lambda gpu: gpu.index)
        name = short(model)
        new = replace(last, uuid=NEW, index=max(gpu.index for gpu in gpus) + 1)
        changes.append(
            Change(kind="more", title=f"One {name} more", gpus=(*gpus, new), slowness={})
        )
        if len(gpus) > 1:
            left = tuple(gpu for gpu in gpus if gpu.uuid != last.uuid)
            changes.append(Change(kind="less", title=f"One {name} less", gpus=left, slowness={}))
        changes += [split(gpus, last, layout) for layout in layouts(last)]
    return changes


def layouts(gpu: CapacityGpu) -> Sequence[tuple[tuple[int, int], ...]]:
    """The MIG layouts that are tried with this GPU; () = it is not known to have MIG."""
    slices = _slices(gpu)
    return () if slices is None or gpu.memory_bytes is None else LAYOUTS[slices[0]]


def split(
    gpus: Sequence[CapacityGpu], gpu: CapacityGpu, layout: tuple[tuple[int, int], ...]
) -> Change:
    """The GPUs with `gpu` as MIG instances of this layout."""
    slices = _slices(gpu)
    if slices is None or gpu.memory_bytes is None:
        raise ValueError(f"{gpu.model} has no MIG")
    compute, memory = slices
    total = gpu.memory_bytes
    parts = tuple(
        replace(
            gpu,
            uuid=f"MIG-{number}",
            memory_bytes=int(USABLE * total * part / memory),
            power=None if gpu.power is None else gpu.power * share / compute,
        )
        for number, (share, part) in enumerate(layout)
    )
    slowness = {part.uuid: compute / share for part, (share, _) in zip(parts, layout, strict=True)}
    words = " + ".join(
        f"{share}g ({total * part / memory / GIB:.0f} GiB)" for share, part in layout
    )
    if len(set(layout)) == 1:
        share, part = layout[0]
        words = f"{len(layout)} × {share}g ({total * part / memory / GIB:.0f} GiB)"
    rest = tuple(other for other in gpus if other.uuid != gpu.uuid)
    return Change(
        kind="mig",
        title=f"GPU {gpu.index} split as {words}",
        gpus=(*rest, *parts),
        slowness=slowness,
        replaced=gpu.uuid,
    )


def _slices(gpu: CapacityGpu) -> tuple[int, int] | None:
    key = capability.rank(gpu.model, {name: float(i) for i, name in enumerate(MIG_MODELS)})
    return None if key is None else list(MIG_MODELS.values())[int(key)]


def short(model: str) -> str:
    """The model without the maker's name; "GPU" if it is unknown."""
    return model.removeprefix("NVIDIA ") or "GPU"
