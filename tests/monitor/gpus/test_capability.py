from __future__ import annotations

import pytest

from monitor.facts.readings import GpuReading
from monitor.gpus.policy.capability import POWERS, estimate, of
from tests.builders import gpu


@pytest.mark.parametrize(
    ("name", "power"),
    [
        ("NVIDIA H200", 2500),
        ("NVIDIA H100 80GB HBM3", 2000),
        ("NVIDIA A100-SXM4-80GB", 624),
        ("NVIDIA GeForce RTX 5090", 419),
        ("NVIDIA L40", 362),
        ("NVIDIA GeForce RTX 4090", 330),
        ("NVIDIA L40S", 733),
        ("NVIDIA A10", 250),
        ("Tesla T4", 65),
    ],
)
def test_known_models_have_their_rank(name: str, power: float) -> None:
    found = of(gpu(name=name))
    assert (found.power, found.power_estimated) == (power, False)


def test_a_name_that_only_begins_alike_is_another_model() -> None:
    assert of(gpu(name="NVIDIA A1000", cores=None)).power is None
    assert of(gpu(name="NVIDIA RTX 4000", cores=None)).power is None


def test_the_settings_add_models_and_overrule_the_table() -> None:
    own = {"GB300": 5000.0, "H100 PCIe": 1500.0, "a100": 600.0}
    assert of(gpu(name="NVIDIA GB300"), own).power == 5000
    assert of(gpu(name="NVIDIA H100 PCIe"), own).power == 1500
    assert of(gpu(name="NVIDIA H100 80GB HBM3"), own).power == 2000


# cores, boost clock, compute capability, as NVIDIA's sheets give them
SHEETS = {
    "A100": (6912, 1410, "8.0"),
    "H100": (16896, 1980, "9.0"),
    "RTX 4090": (16384, 2520, "8.9"),
    "L40": (18176, 2490, "8.9"),
    "RTX 5090": (21760, 2407, "12.0"),
    "V100": (5120, 1530, "7.0"),
    "T4": (2560, 1590, "7.5"),
}


@pytest.mark.parametrize("model", SHEETS)
def test_the_estimate_comes_near_the_ranks_that_are_known(model: str) -> None:
    cores, clock, cc = SHEETS[model]
    unknown = gpu(name="New", cores=cores, max_sm_clock_mhz=clock, compute_capability=cc)
    found = of(unknown)
    assert found.power_estimated
    assert found.power == pytest.approx(POWERS[model], rel=0.05)


def test_nothing_is_estimated_from_nothing() -> None:
    assert estimate(gpu(cores=None)) is None
    assert of(GpuReading(uuid="x", index=0)).power is None


@pytest.mark.parametrize(
    ("cc", "words"),
    [("8.0", "Ampere"), ("8.9", "Ada Lovelace"), ("9.0", "Hopper"), ("12.0", "Blackwell")],
)
def test_the_generation_follows_from_the_compute_capability(cc: str, words: str) -> None:
    assert of(gpu(compute_capability=cc)).architecture == words


def test_the_driver_s_own_word_for_the_generation_wins() -> None:
    assert of(gpu(architecture="Rubin", compute_capability="9.0")).architecture == "Rubin"
    assert of(gpu(compute_capability=None)).architecture is None
