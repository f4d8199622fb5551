"""`gpucoord models`."""

from __future__ import annotations

from typing import Any

import pytest

from gpucoord_site.cli import verbs

INSTANCE = {"state": "ready", "gpus": [0, 3], "in_flight": 2, "started_boot": "2026-03-02T12:00Z"}
MODEL: dict[str, Any] = {
    "name": "qwen2.5:14b",
    "state": "busy",
    "instances": [INSTANCE],
    "use": {"requests": 23, "first_token_s": 0.456},
}


def test_it_lists_models_with_their_instances_and_the_endpoint() -> None:
    said = "\n".join(verbs.model_lines({"models": [MODEL], "base_url": "http://box:8001/v1"}))

    assert "qwen2.5:14b" in said
    assert "ready on GPU 0, GPU 3" in said
    assert "0.46 s" in said
    assert "Endpoint: http://box:8001/v1" in said


def test_a_started_model_is_shown_alone() -> None:
    waiting = INSTANCE | {"started_boot": None, "gpus": []}

    said = "\n".join(verbs.model_lines(MODEL | {"instances": [waiting]}))

    assert "waits for a GPU" in said


def test_without_models_it_says_who_adds_them() -> None:
    assert list(verbs.model_lines({"models": [], "base_url": None})) == [
        "No model services yet. Operators add them."
    ]


def test_an_action_needs_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert verbs.models(["boot"]) == 2
    assert "boot MODEL" in capsys.readouterr().err
