from __future__ import annotations

from tests.scheduler.placing import Case

HOUR = 3600.0


def test_it_serves_whoever_is_furthest_below_their_share_first() -> None:
    case = Case().gpu("a").person("alice", target=0.5, charge=1.0).person("bob", target=0.5)

    case.job(1, owner="alice").job(2, owner="bob").expect(a=[2], waiting={1: "GpuTaken"})


def test_it_counts_what_the_pass_has_given_at_once() -> None:
    case = Case().gpu("a").gpu("b").person("alice", target=0.5).person("bob", target=0.5)
    case.job(1, owner="alice").job(2, owner="alice").job(3, owner="bob")

    case.expect(a=[1], b=[3], waiting={2: "GpuTaken"})


def test_it_shares_evenly_among_people_of_whom_nothing_is_known() -> None:
    case = Case().gpu("a").gpu("b").job(1, owner="alice").job(2, owner="alice")

    case.job(3, owner="bob").expect(a=[1], b=[3], waiting={2: "GpuTaken"})


def test_it_puts_priority_above_shares() -> None:
    case = Case().gpu("a").person("alice", target=0.1, charge=1.0).person("bob", target=0.9)

    case.job(1, owner="alice", priority=4).job(2, owner="bob").expect(
        a=[1], waiting={2: "GpuTaken"}
    )


def test_a_long_wait_outweighs_a_small_lead() -> None:
    def case(waited_h: float) -> Case:
        made = Case().gpu("a")
        made.person("alice", target=0.485).person("bob", target=0.5)
        return made.job(1, owner="alice", after_s=-waited_h * HOUR).job(2, owner="bob")

    case(1).expect(a=[2], waiting={1: "GpuTaken"})
    case(24).expect(a=[1], waiting={2: "GpuTaken"})


def test_no_wait_outweighs_a_large_lead() -> None:
    case = Case().gpu("a").person("alice", target=0.5, charge=1.0).person("bob", target=0.5)

    case.job(1, owner="alice", after_s=-1000 * HOUR).job(2, owner="bob").expect(
        a=[2], waiting={1: "GpuTaken"}
    )


def test_what_is_measured_may_wobble_without_a_change_of_the_order() -> None:
    for wobble in (-0.1, 0.0, 0.1):
        case = Case().gpu("a").person("alice", target=0.5, charge=1 + wobble)
        case.person("bob", target=0.5, charge=1.0)

        case.job(1, owner="alice").job(2, owner="bob").expect(a=[1], waiting={2: "GpuTaken"})
