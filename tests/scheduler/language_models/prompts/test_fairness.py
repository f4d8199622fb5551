from __future__ import annotations

import heapq
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.facts.language_models import Instance, Request, Service
from scheduler.language_models.prompts.policy import Router


def _simulate(
    arrivals: list[tuple[float, str]], lasts_s: float, instances: int, concurrency: int, seed: int
) -> dict[str, list[float]]:
    """The latencies of each user's requests; a request takes about `lasts_s` on an instance."""
    random, router = Random(seed), Router()
    servers = tuple(Instance(id=number) for number in range(instances))
    router.update([Service(id=1, name="m", concurrency=concurrency, instances=servers)])
    events: list[tuple[float, int, Request, bool]] = [
        (at, number, Request(key=number, service="m", owner=owner, since_s=at), False)
        for number, (at, owner) in enumerate(arrivals)
    ]
    heapq.heapify(events)
    latencies: dict[str, list[float]] = {}
    while events:
        now, number, request, has_ended = heapq.heappop(events)
        if has_ended:
            router.remove(request, now)
            latencies.setdefault(request.owner, []).append(now - request.since_s)
        else:
            router.add(request)
        for start in router.start(now)[0]:
            end = now + lasts_s * random.uniform(0.8, 1.2)
            heapq.heappush(events, (end, number, start.request, True))
    return latencies


def _p90(values: list[float]) -> float:
    return sorted(values)[int(0.9 * (len(values) - 1))]


@settings(max_examples=40, deadline=None)
@given(
    # Of the other user's fair share, the steady requests need at most a half.
    part=st.floats(0.05, 0.25),
    instances=st.integers(1, 3),
    concurrency=st.integers(2, 8),
    seed=st.integers(0, 10_000),
)
def test_a_flood_of_one_user_does_not_delay_another(
    part: float, instances: int, concurrency: int, seed: int
) -> None:
    lasts_s = part * 5.0 * instances * concurrency
    steady = [(5.0 * number, "bob") for number in range(40)]
    flood = [(12.0, "ada")] * 200

    alone = _simulate(steady, lasts_s, instances, concurrency, seed)["bob"]
    beside = _simulate(steady + flood, lasts_s, instances, concurrency, seed)["bob"]

    assert _p90(beside) <= 1.5 * _p90(alone)


@settings(max_examples=20, deadline=None)
@given(users=st.integers(2, 5), seed=st.integers(0, 10_000))
def test_every_request_is_answered_once(users: int, seed: int) -> None:
    random = Random(seed)
    arrivals = [(random.uniform(0, 100), f"user{random.randrange(users)}") for _ in range(150)]
    latencies = _simulate(arrivals, 3.0, 2, 2, seed)

    assert sum(map(len, latencies.values())) == len(arrivals)
