"""Other hardware that is tried: one GPU more or less, and MIG layouts."""

from __future__ import annotations

from reports.capacity.policy.replay import changes, split
from tests.builders import GIB
from tests.reports.capacity.recordings import known_gpu

L4 = {"model": "NVIDIA L4", "memory_bytes": 24 * GIB}


def test_each_model_is_tried_with_one_more_and_one_less() -> None:
    found = changes([known_gpu(0), known_gpu(1), known_gpu(2, **L4)])
    titles = [(one.kind, one.title, len(one.gpus)) for one in found if one.kind != "mig"]
    assert titles == [
        ("more", "One H100 80GB HBM3 more", 4),
        ("less", "One H100 80GB HBM3 less", 2),
        ("more", "One L4 more", 4),
        ("less", "One L4 less", 2),
    ]


def test_the_only_gpu_is_not_taken_away() -> None:
    assert [one.kind for one in changes([known_gpu(0, **L4)])] == ["more"]


def test_models_without_mig_are_not_split() -> None:
    assert not [one for one in changes([known_gpu(0, **L4)]) if one.kind == "mig"]
    assert not [one for one in changes([known_gpu(0, memory_bytes=None)]) if one.kind == "mig"]


def test_a_split_replaces_the_gpu_by_its_instances() -> None:
    change = split([known_gpu(0), known_gpu(3)], known_gpu(3), ((4, 4), (3, 4)))
    assert change.title == "GPU 3 split as 4g (40 GiB) + 3g (40 GiB)"
    assert [gpu.index for gpu in change.gpus] == [0, 3, 3]
    assert all((gpu.memory_bytes or 0) < 40 * GIB for gpu in change.gpus[1:])
    assert sorted(change.slowness.values()) == [7 / 4, 7 / 3]


def test_equal_instances_are_named_once() -> None:
    found = [one.title for one in changes([known_gpu(0)]) if one.kind == "mig"]
    assert "GPU 0 split as 7 × 1g (10 GiB)" in found
