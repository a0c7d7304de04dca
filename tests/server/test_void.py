"""When a run may not be concluded from, by sends worked out by hand."""

import pytest

from gpu_runner.server.client.events import Effort
from gpu_runner.server.void import Lateness, judge
from scheduler_core.types.time import NS_PER_MS

RESTED = Effort(0.1, 1.0, 0.2, 0, 0, 1, 1, 0, 0, 0, 0, 0, real_time=True)


def sends(count: int, *, gap_ms: float, drift_ms: float = 0.0, late: dict[int, float] | None = None) -> Lateness:
    """``count`` sends ``gap_ms`` apart, each ``drift_ms`` later than the one before; ``late`` adds to some, in ms."""
    found = Lateness()
    for n in range(count):
        due = round(n * gap_ms * NS_PER_MS)
        found.due(n, due)
        found.wrote(n, due + round((n * drift_ms + (late or {}).get(n, 0.0)) * NS_PER_MS), 1)
    return found


def test_a_client_that_keeps_its_times_is_not_void() -> None:
    assert judge(sends(10_000, gap_ms=5), [RESTED], late_ms=5) == ""


def test_sleeping_for_each_gap_is_void_whatever_lateness_is_allowed() -> None:
    """10,000 requests at 200/s, each gap 0.45 ms too long: 183.5/s are sent, and the last is 4.5 s late.

    9,999 gaps of 5 ms are 49.995 s; of 5.45 ms, 54.49455 s: 199.99.. and 183.49 requests/s, 8.3 % fewer.
    """
    drifting = sends(10_000, gap_ms=5, drift_ms=0.45)
    assert "the load client was late" in judge(drifting, [RESTED], late_ms=5)
    assert drifting.rates() == pytest.approx((200.0, 183.486), abs=1e-3)
    said = judge(drifting, [RESTED], late_ms=4_490)  # 99 % were within 4.46 s; the span is 4.4996 s longer
    assert said == "asked were 200.0 requests/s, sent were 183.5: 8.3 % fewer, allowed is 1 %"


@pytest.mark.parametrize(("drift_ms", "void"), [(0.049, False), (0.052, True), (-0.049, False), (-0.052, True)])
def test_the_rate_may_be_off_by_one_per_cent(drift_ms: float, *, void: bool) -> None:
    """Gaps of 5 ms that are 0.049 or 0.052 ms longer or shorter: 0.97 and 1.03 % fewer, 0.99 and 1.05 % more.

    99 % of the sends that drift later are within 99 % of the whole drift; the whole is above what is allowed.
    """
    late_ms = abs(drift_ms) * 9_999 * 0.995
    said = judge(sends(10_000, gap_ms=5, drift_ms=drift_ms), [RESTED], late_ms=late_ms)
    assert bool(said) is void and ("allowed is 1 %" in said) is void


def test_the_rate_of_a_short_plan_is_no_finer_than_one_allowed_delay() -> None:
    """50 sends in 490 ms whose last is 5 ms late are 1.01 % fewer; with 7 ms it is more than the delay allows."""
    assert judge(sends(50, gap_ms=10, late={49: 5.0}), [RESTED], late_ms=5) == ""
    assert "allowed is 1 %" in judge(sends(150, gap_ms=3, late={149: 7.0}), [RESTED], late_ms=5)


def test_the_99th_percentile_of_send_delay_decides() -> None:
    """Of 1,000 sends 9 late ones are not 1 %; 11 are."""
    few, many = ({n * 80: 50.0 for n in range(1, count + 1)} for count in (9, 11))
    assert judge(sends(1_000, gap_ms=5, late=few), [RESTED], late_ms=5) == ""
    assert "were sent within 50.0 ms of their time, allowed are 5 ms" in judge(
        sends(1_000, gap_ms=5, late=many), [RESTED], late_ms=5
    )


@pytest.mark.parametrize("real_time", [True, False])
def test_a_late_client_that_was_not_all_in_real_time_is_told_to_be(*, real_time: bool) -> None:
    efforts = [RESTED, RESTED._replace(real_time=real_time)]
    said = judge(sends(100, gap_ms=5, late={50: 50.0, 51: 50.0}), efforts, late_ms=5)
    assert said == (
        "the load client was late: 99 % of requests were sent within 50.0 ms of their time, allowed are 5 ms; "
        + ("" if real_time else "let the client run in real time (RLIMIT_RTPRIO of 1, or CAP_SYS_NICE), or ")
        + "use more processes or a quieter machine"
    )


def test_a_saturated_process_voids_the_run() -> None:
    efforts = [RESTED, RESTED._replace(busiest_share=0.97)]
    assert judge(sends(100, gap_ms=5), efforts, late_ms=5) == (
        "the load client was saturated: a process of it used 97 % of a core"
    )
