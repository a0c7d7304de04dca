"""Links: when transfers land that share a bandwidth."""

from scheduler_core.cluster.links import Link, Moved
from scheduler_core.types.time import NEVER


def test_times_do_not_depend_on_how_often_somebody_looks() -> None:
    """Three transfers of 1 byte at 10 bytes a second: each gets 10/3 units of 1e-9 byte a ns, and needs 1e9 of them.

    They land after 300,000,000 ns. Rounded down at a look after 1 ns, it would be one more.
    """
    link = Link(bytes_per_s=10)
    for flow in "abc":
        link.start(flow, 1, 0)
    assert link.due_ns == 300_000_000
    assert link.landed(1) == []
    assert link.due_ns == 300_000_000
    assert link.landed(299_999_999) == []
    assert flows(link.landed(300_000_000)) == ["a", "b", "c"]
    assert link.due_ns == NEVER


def test_the_end_of_one_speeds_up_the_others() -> None:
    """10 bytes a second, latency 5 ns: 1 byte beside 2 is given to the link after 0.2 s, the last byte after 0.3 s.

    A transfer of 1 byte that begins after 0.25 s shares from then on: half a byte is left of the first, which takes
    0.1 s by half the bandwidth; then the other half of the newcomer takes 0.05 s.
    """
    link = Link(bytes_per_s=10, latency_ns=5)
    link.start("short", 1, 0)
    link.start("long", 2, 0)
    assert link.due_ns == 200_000_005
    assert flows(link.landed(200_000_005)) == ["short"]
    assert link.due_ns == 300_000_005
    link.start("late", 1, 250_000_000)
    assert flows(link.landed(400_000_005)) == ["long", "late"]


def test_what_was_stopped_slows_nobody_down() -> None:
    """Two of 1 byte at 10 bytes a second; one is stopped after 0.1 s, when half a byte of the other is left: 0.05 s."""
    link = Link(bytes_per_s=10)
    link.start("stays", 1, 0)
    link.start("goes", 1, 0)
    link.stop("goes", 100_000_000)
    assert link.due_ns == 150_000_000
    assert flows(link.landed(150_000_000)) == ["stays"]
    assert link.due_ns == NEVER


def test_a_prediction_counts_what_is_left_now_and_changes_nothing() -> None:
    """10 bytes a second, latency 5 ns: 2 bytes of ``a`` in two pieces and 3 of ``b`` begin together, 5 bytes/s each.

    After 0.3 s ``a`` has moved 1.5 bytes: half a byte is left, and with 1 more 1.5 bytes, at half the bandwidth 0.3 s.
    ``b`` has 1.5 bytes left: 0.3 s. A third flow with 1 byte would have a third of the bandwidth: 0.3 s. The second
    piece of ``a`` still lands at 0.4 s.
    """
    link = Link(bytes_per_s=10, latency_ns=5)
    link.start("a", 1, 0)
    link.start("a", 1, 0)
    link.start("b", 3, 0)
    now = 300_000_000
    assert flows(link.landed(now)) == ["a"]
    assert [link.predict_ns(1, "a", now), link.predict_ns(0, "b", now), link.predict_ns(1, "c", now)] == [now + 5] * 3
    assert link.due_ns == 400_000_005
    assert flows(link.landed(400_000_005)) == ["a"]


def flows(landed: list[Moved]) -> list[object]:
    return [moved.flow for moved in landed]
