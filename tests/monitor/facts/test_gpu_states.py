"""The table of a GPU's states."""

from __future__ import annotations

from itertools import pairwise

import pytest

from monitor.facts.gpus import (
    IMPOSED,
    TRANSITIONS,
    GpuState,
    IllegalGpuTransition,
    check_transition,
)

S = GpuState


def test_every_state_has_its_moves_and_none_leads_to_itself() -> None:
    assert set(TRANSITIONS) == set(GpuState)
    assert all(old not in new for old, new in TRANSITIONS.items())


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (S.IDLE, S.SCRIPT_BUSY),
        (S.EXTERNAL, S.LLM_BUSY),
        (S.SCRIPT_BUSY, S.IDLE),
        (S.LLM_READY, S.SCRIPT_BUSY),
        (S.COOLING, S.SCRIPT_BUSY),
        (S.BOOTING_LLM, S.SCRIPT_BUSY),
    ],
)
def test_what_does_not_boot_or_cool_is_refused(old: GpuState, new: GpuState) -> None:
    with pytest.raises(IllegalGpuTransition, match=f"{old} can't be {new}"):
        check_transition(old, new)


@pytest.mark.parametrize(
    "way",
    [
        [S.IDLE, S.BOOTING_SCRIPT, S.SCRIPT_BUSY, S.COOLING, S.IDLE],
        [S.EXTERNAL, S.BOOTING_LLM, S.LLM_READY, S.LLM_BUSY, S.LLM_READY, S.COOLING, S.EXTERNAL],
        [S.LLM_BUSY, S.BOOTING_SCRIPT, S.SCRIPT_BUSY, S.LLM_READY],
        [S.SCRIPT_BUSY, S.BOOTING_SCRIPT, S.IDLE],
        # The model sleeps; another process is there, or none.
        [S.LLM_READY, S.EXTERNAL],
        [S.LLM_BUSY, S.IDLE, S.BOOTING_LLM],
    ],
)
def test_ordinary_lives_are_legal(way: list[GpuState]) -> None:
    for old, new in pairwise(way):
        check_transition(old, new)


@pytest.mark.parametrize("imposed", sorted(IMPOSED))
def test_trouble_and_a_pause_come_and_go_at_any_time(imposed: GpuState) -> None:
    for state in set(GpuState) - {imposed}:
        check_transition(state, imposed)
        check_transition(imposed, state)


def test_a_new_gpu_may_be_in_any_state_and_one_may_stay_as_it_is() -> None:
    for state in GpuState:
        check_transition(None, state)
        check_transition(state, state)
