from __future__ import annotations

from msgspec.structs import replace

from scheduler.facts.language_models import Assignment, Instance, Request, Service, WaitCode
from scheduler.language_models.prompts.policy import assign, retry_after_s, sentence

REQUEST = Request(key="r", service="m", owner="ada")
ONE, TWO = Instance(id=1), Instance(id=2)
SERVICE = Service(id=1, name="m", concurrency=2, max_instances=2)


def _booting(ready_in_s: float | None = 84.2) -> Instance:
    return Instance(id=3, is_ready=False, is_booting=True, ready_in_s=ready_in_s)


def _with(*instances: Instance) -> Service:
    return replace(SERVICE, instances=instances)


def _words(chosen: Assignment) -> str:
    assert chosen.wait is not None
    return sentence(chosen.wait)


def test_a_ready_instance_without_requests_comes_before_a_busy_one() -> None:
    assert assign(REQUEST, _with(ONE, TWO), {1: 1}).instance == TWO


def test_an_instance_below_its_concurrency_takes_the_request() -> None:
    assert assign(REQUEST, _with(ONE), {1: 1}).instance == ONE


def test_without_an_instance_the_model_is_booted_and_the_request_waits() -> None:
    chosen = assign(REQUEST, _with(), {})

    assert chosen.boots
    assert _words(chosen) == "model waits for a free GPU, position 1"


def test_a_request_joins_a_boot_under_way() -> None:
    chosen = assign(REQUEST, _with(_booting()), {})

    assert not chosen.boots
    assert _words(chosen) == "model boots, ready in ~85 s, position 1"


def test_when_all_instances_are_busy_the_blocker_names_the_position() -> None:
    chosen = assign(REQUEST, _with(ONE, TWO), {1: 2, 2: 2}, position=7)

    assert not chosen.boots
    assert _words(chosen) == "all 2 instances busy, position 7"


def test_a_busy_model_gets_another_instance_up_to_its_most() -> None:
    assert assign(REQUEST, _with(ONE), {1: 2}).boots
    assert not assign(REQUEST, _with(ONE, TWO), {1: 2, 2: 2}).boots


def test_a_reserved_place_stays_free() -> None:
    chosen = assign(REQUEST, _with(ONE), {1: 1}, reserved=1)

    assert chosen.instance is None
    assert not chosen.boots
    assert chosen.wait is not None
    assert chosen.wait.code is WaitCode.PLACE_RESERVED


def test_an_instance_that_failed_with_the_request_is_the_last_choice() -> None:
    request = replace(REQUEST, tried=frozenset({1}))

    assert assign(request, _with(ONE, TWO), {2: 1}).instance == TWO
    assert assign(request, _with(ONE), {}).instance == ONE


def test_a_failed_start_is_named() -> None:
    service = replace(_with(), problem="exit code 3")

    assert _words(assign(REQUEST, service, {})) == (
        "the last start of the model failed (exit code 3); it is tried again, position 1"
    )


def test_a_request_to_a_disabled_model_says_so() -> None:
    service = replace(_with(), is_enabled=False, problem="exit code 3")

    assert _words(assign(REQUEST, service, {})) == "an operator has disabled the model, position 1"


def test_clients_ask_again_when_the_model_is_ready() -> None:
    assert retry_after_s(assign(REQUEST, _with(_booting()), {}).wait) == 85
    assert retry_after_s(assign(REQUEST, _with(_booting(None)), {}).wait) == 10
    assert retry_after_s(None) == 10


def test_a_batch_that_has_the_gpus_of_the_model_is_named() -> None:
    service = replace(_with(), batch=12, problem="exit code 3")

    assert _words(assign(REQUEST, service, {})) == (
        "batch 12 has the GPUs of the model for itself, position 1"
    )
