from __future__ import annotations

from msgspec.structs import replace

from scheduler.facts.language_models import Instance, Request, Service
from scheduler.language_models.prompts.policy import RECENT_S, Router

INSTANCE = Instance(id=1)
SERVICE = Service(id=7, name="m", concurrency=2, max_instances=1, instances=(INSTANCE,))


def _router(*, concurrency: int = 2, **deficits: float) -> Router:
    router = Router()
    router.update([replace(SERVICE, concurrency=concurrency)], deficits)
    return router


def _request(key: str, owner: str, since_s: float = 0.0, priority: int = 3) -> Request:
    return Request(key=key, service="m", owner=owner, since_s=since_s, priority=priority)


def _started(router: Router, now_s: float = 0.0) -> list[object]:
    return [one.request.key for one in router.start(now_s)[0]]


def test_requests_start_in_their_order_up_to_the_concurrency() -> None:
    router = _router()
    for number in range(3):
        router.add(_request(f"r{number}", "ada", number))

    assert _started(router, 3) == ["r0", "r1"]
    assert router.in_flight() == {1: 2}


def test_a_higher_priority_comes_first() -> None:
    router = _router(concurrency=1)
    router.add(_request("low", "ada", 0, priority=2))
    router.add(_request("high", "bob", 1, priority=4))

    assert _started(router, 1) == ["high"]


def test_users_take_turns() -> None:
    router = _router()
    for number in range(3):
        router.add(_request(f"a{number}", "ada", 0))
    router.add(_request("b", "bob", 1))

    assert _started(router, 1) == ["a0", "b"]


def test_the_share_that_orders_jobs_orders_requests() -> None:
    router = _router(concurrency=1, ada=-0.3, bob=0.3)
    router.add(_request("a", "ada", 0))
    router.add(_request("b", "bob", 1))

    assert _started(router, 1) == ["b"]


def test_a_place_stays_free_for_a_recent_user() -> None:
    router = _router()
    router.add(_request("b", "bob", 0))
    assert _started(router) == ["b"]
    router.remove(_request("b", "bob", 0), 1)
    for number in range(3):
        router.add(_request(f"a{number}", "ada", 2))

    assert _started(router, 2) == ["a0"]
    assert _started(router, 2 + RECENT_S) == ["a1"]


def test_the_reserved_place_goes_to_the_recent_user_at_once() -> None:
    router = _router()
    router.add(_request("b", "bob", 0))
    router.start(0)
    router.remove(_request("b", "bob", 0), 1)
    for number in range(3):
        router.add(_request(f"a{number}", "ada", 2))
    router.start(2)
    router.add(_request("b2", "bob", 3))

    assert _started(router, 3) == ["b2"]


def test_a_user_alone_gets_all_places() -> None:
    router = _router(concurrency=4)
    for number in range(5):
        router.add(_request(f"a{number}", "ada"))

    assert len(_started(router)) == 4


def test_a_request_whose_instance_failed_waits_again_in_its_place() -> None:
    router = _router(concurrency=1)
    first, second = _request("first", "ada", 0), _request("second", "ada", 1)
    router.add(first)
    router.add(second)
    router.start(1)
    again = router.retry(first, INSTANCE)

    assert again.tried == {1}
    assert _started(router, 2) == ["first"]


def test_a_model_without_a_place_is_booted_only_while_requests_wait() -> None:
    router = Router()
    router.update([replace(SERVICE, instances=())])
    assert router.start(0) == ([], [])
    router.add(_request("r", "ada"))

    assert router.start(0) == ([], [7])


def test_a_waiting_request_knows_its_position() -> None:
    router = _router(concurrency=1)
    for number in range(3):
        router.add(_request(f"a{number}", "ada", number))
    router.start(3)
    wait = router.wait(_request("a2", "ada", 2), 3)

    assert wait is not None
    assert wait.position == 2


def test_a_request_of_a_client_that_has_gone_frees_its_place() -> None:
    router = _router(concurrency=1)
    gone = _request("gone", "ada")
    router.add(gone)
    router.start(0)
    router.remove(gone, 1)

    assert router.in_flight() == {}
