"""Facts: what a GPU is doing, in one word, and which moves from word to word are legal."""

from __future__ import annotations

from enum import StrEnum


class GpuState(StrEnum):
    """idle: nobody on it · external: others alone, or a lock of theirs ·

    booting_script, booting_llm: a job or a model of ours has it, but is not on it yet ·
    script_busy: a job of ours is · llm_ready, llm_busy: a model waits, works ·
    cooling: ours has ended, its memory is not back yet · throttled: by its condition ·
    paused: by an operator · failing: answers with errors · lost: does not answer.
    """

    IDLE = "idle"
    BOOTING_LLM = "booting_llm"
    BOOTING_SCRIPT = "booting_script"
    LLM_READY = "llm_ready"
    LLM_BUSY = "llm_busy"
    SCRIPT_BUSY = "script_busy"
    COOLING = "cooling"
    THROTTLED = "throttled"
    PAUSED = "paused"
    EXTERNAL = "external"
    FAILING = "failing"
    LOST = "lost"


class IllegalGpuTransition(Exception):
    """A move that the table does not know: a fault of ours, never of the GPU."""


# What comes from outside, at any time and over whatever the GPU is doing.
IMPOSED = frozenset({GpuState.LOST, GpuState.FAILING, GpuState.PAUSED, GpuState.THROTTLED})
_FREE = {GpuState.IDLE, GpuState.EXTERNAL}
_BOOTS = {GpuState.BOOTING_LLM, GpuState.BOOTING_SCRIPT}
_MODEL = {GpuState.LLM_READY, GpuState.LLM_BUSY}
# Whatever is ours boots before it works, and cools before its GPU is free again. Several may share
# a GPU: then what boots or works tells more than a model beside it.
_WORK: dict[GpuState, set[GpuState]] = {
    GpuState.IDLE: {GpuState.EXTERNAL, GpuState.COOLING, *_BOOTS},
    GpuState.EXTERNAL: {GpuState.IDLE, GpuState.COOLING, *_BOOTS},
    GpuState.BOOTING_SCRIPT: {
        GpuState.SCRIPT_BUSY, GpuState.BOOTING_LLM, GpuState.COOLING, *_MODEL, *_FREE
    },
    GpuState.BOOTING_LLM: {GpuState.BOOTING_SCRIPT, GpuState.COOLING, *_MODEL, *_FREE},
    GpuState.SCRIPT_BUSY: {GpuState.COOLING, *_BOOTS, *_MODEL},
    GpuState.LLM_READY: {GpuState.LLM_BUSY, GpuState.COOLING, *_BOOTS},
    GpuState.LLM_BUSY: {GpuState.LLM_READY, GpuState.COOLING, *_BOOTS},
    GpuState.COOLING: {*_FREE, *_BOOTS},
}  # fmt: skip
TRANSITIONS: dict[GpuState, frozenset[GpuState]] = {
    **{old: frozenset(new | IMPOSED) for old, new in _WORK.items()},
    **{old: frozenset(set(GpuState) - {old}) for old in IMPOSED},
}


def check_transition(old: GpuState | None, new: GpuState) -> None:
    """Raise IllegalGpuTransition unless a GPU in `old` may be in `new` next. None = it is new."""
    if old is not None and old is not new and new not in TRANSITIONS[old]:
        raise IllegalGpuTransition(f"a GPU that is {old} can't be {new} next")
