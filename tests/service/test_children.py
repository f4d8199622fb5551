from __future__ import annotations

import errno
import gc
import os
import signal

import pytest

from gpucoord_site.service.children import HANDLED, LOOK_EVERY_S, Child, OnDemandChild


def test_a_fork_that_fails_is_tried_again_with_signals_and_memory_as_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails() -> int:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    monkeypatch.setattr(os, "fork", fails)
    child = Child("web", lambda: 0, lambda: None)
    frozen = gc.get_freeze_count()

    for _ in range(4):
        child.start()

    assert not set(HANDLED) & signal.pthread_sigmask(signal.SIG_BLOCK, [])
    assert gc.get_freeze_count() <= frozen
    assert child.pid is None
    assert child.due > 0
    assert child.state().last_end == "fork failed: Cannot allocate memory"
    monkeypatch.undo()
    child.start()
    assert child.pid is not None
    os.waitpid(child.pid, 0)


def on_demand(exit_code: int = 0) -> OnDemandChild:
    return OnDemandChild("reports", lambda: exit_code, lambda: None)


def run(child: OnDemandChild) -> None:
    child.start()
    assert child.pid is not None
    child.ended(os.waitpid(child.pid, 0)[1])


def test_an_on_demand_child_is_due_only_while_there_is_work() -> None:
    child = on_demand()
    assert not child.is_due(1.0)
    child.is_wanted = True
    assert child.is_due(1.0)
    run(child)
    assert not child.is_due(1.0)


def test_an_on_demand_child_that_ended_by_itself_is_not_shown() -> None:
    child = on_demand()
    run(child)
    assert not child.is_shown


def test_an_on_demand_child_that_failed_is_shown_and_pauses_like_any_other() -> None:
    child = on_demand(exit_code=3)
    for _ in range(4):
        run(child)
    assert child.is_shown
    assert child.state().last_end == "exit code 3"
    child.is_wanted = True
    assert not child.is_due(child.due - 0.1)


def test_work_is_looked_for_every_few_seconds() -> None:
    child = on_demand()
    assert child.should_look(0.0)
    assert not child.should_look(LOOK_EVERY_S - 0.1)
    assert child.should_look(LOOK_EVERY_S)
