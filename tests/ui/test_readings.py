"""How figures read: golden values."""

import pytest

from controlplane.ui import readings
from controlplane.ui.comparing import Change, differences
from controlplane.ui.drawing import arrival_curve, dot_plot, interval_bar, nice_step, quantile_curve
from scheduler_core.verdict import titles


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"), (5, "5"), (12_345, "12,345"), (123.4, "123"), (12.34, "12.3"), (1.2345, "1.23"),
        (0.00123456, "0.00123"),
        (2.0, "2"), (-3.456, "-3.46"), (999.6, "1,000"), (None, "–"), (float("nan"), "–"), (float("inf"), "–"),
    ],
)  # fmt: skip
def test_numbers_keep_three_digits(value: float | None, text: str) -> None:
    assert readings.number(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0.0"), (39_670.52, "39,670.5"), (166.08, "166.1"), (None, "–"), (float("nan"), "–")]
)
def test_numbers_of_columns_that_add_up_keep_a_tenth(value: float | None, text: str) -> None:
    assert readings.tenths(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (0.42, "0.42 s"), (9.96, "10 s"), (59.4, "59 s"), (59.6, "1 min 00 s"), (185, "3 min 05 s"),
     (7_800, "2 h 10 min"), (273_600, "3 d 4 h"), (None, "–")],
)  # fmt: skip
def test_durations(seconds: float | None, text: str) -> None:
    assert readings.duration(seconds) == text


@pytest.mark.parametrize(("seconds", "text"), [(7, "7 s"), (59, "59 s"), (95, "2 min"), (3600, "1 h"), (90_000, "1 d")])
def test_ages_are_said_roughly(seconds: float, text: str) -> None:
    assert readings.about(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (3_565_158, "3.4 MiB"), (2**41, "2,048 GiB"), (None, "–")],
)
def test_sizes(count: int | None, text: str) -> None:
    assert readings.size(count) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.1, "+10 %"), (-0.0234, "-2.3 %"), (0, "0 %"), (0.0001, "0 %"), (9.304, "+930 %"), (None, "–")],
)
def test_changes_carry_their_sign(value: float | None, text: str) -> None:
    assert readings.change(value) == text


@pytest.mark.parametrize(
    ("name", "title", "unit"),
    [
        ("ttft_p95_ms", "TTFT p95", "ms"), ("goodput_rps", "Goodput", "requests/s"),
        ("completion_share", "Completion", "%"),
        ("throughput_tokens_per_s", "Throughput", "tokens/s"), ("itl_p99_ms", "Token gap p99", "ms"),
        ("peak_kv_blocks", "Peak KV", "blocks"), ("transfer_bytes", "Transfer", "bytes"), ("steps", "Steps", ""),
    ],
)  # fmt: skip
def test_metrics_have_words_and_units(name: str, title: str, unit: str) -> None:
    assert (titles.metric_title(name), titles.metric_unit(name)) == (title, unit)


def test_an_absent_figure_is_its_reason_and_zero_is_a_measurement() -> None:
    assert readings.figure(None) == ("not measured", "", False)
    assert readings.figure({"value": None, "absence": "not_applicable"}) == ("does not apply", "", False)
    assert readings.figure({"value": 0, "unit": "ms"}, "wait_ms") == ("0", "ms", True)
    assert readings.figure({"value": 0.25, "unit": "share"}, "hit_share") == ("25", "%", True)


def test_differences_name_dotted_paths() -> None:
    was = {"a": {"x": 1, "y": None, "on": True}, "stages": [{"r": 1}], "gone": 3, "table": [1, 2]}
    now = {"a": {"x": 2, "on": True}, "stages": [{"r": 1}, {"r": 2}], "table": [1, 3]}
    assert differences(was, now) == [
        Change("a.x", "1", "2"),
        Change("gone", "3", ""),
        Change("stages.1.r", "", "2"),
        Change("table", "1, 2", "1, 3"),
    ]


def test_an_interval_lies_in_the_zone_exactly_when_its_gate_passes() -> None:
    """Primary, lower is better, at least 10 %: the interval [-50 %, -30 %] lies wholly beyond -10 %, so in the zone."""
    gate = {
        "role": "primary",
        "better": "lower",
        "margin": 0.1,
        "change": -0.4,
        "interval": {"low": -0.5, "high": -0.3},
    }
    bar = interval_bar(gate)
    assert bar is not None and bar.low is not None and bar.high is not None
    assert bar.zone_start <= bar.low < bar.dot < bar.high <= bar.zone_start + bar.zone_width < bar.zero


@pytest.mark.parametrize("margin", [-0.02, 0.02])
def test_a_guard_allows_up_to_its_margin_on_the_worse_side(margin: float) -> None:
    """Goodput, higher is better, may fall by 2 %: the zone starts left of zero and reaches to the right end."""
    bar = interval_bar({"role": "guard", "better": "higher", "margin": margin, "change": 0.0, "interval": None})
    assert bar is not None and bar.low is None
    assert bar.zone_start < bar.zero and bar.zone_start + bar.zone_width == bar.width
    assert bar.margin_text == "-2 %"


def test_no_change_no_bar() -> None:
    assert interval_bar({"role": "guard", "better": "lower", "margin": 0.05, "change": None}) is None


def test_an_arrival_curve_says_its_rates() -> None:
    """Counts 2, 0, 4 in buckets of 2 s: 1, 0 and 2 requests/s; 6 in 6 s is 1 on average."""
    figure = arrival_curve({"arrivals": {"bucket_s": 2.0, "counts": [2, 0, 4]}})
    assert figure is not None
    assert figure.reading == "1 requests/s on average, at most 2 in any 2 s, over 6 s."
    assert figure.rows == [("0 s", "1"), ("2 s", "0"), ("4 s", "2")]
    assert arrival_curve({"arrivals": {"bucket_s": 0, "counts": [7]}}) is None


def test_a_length_curve_is_ordered_by_share() -> None:
    figure = quantile_curve({"p100": 90.0, "p50": 20.0, "p0": 1.0, "p95": 80.0})
    assert figure is not None
    assert [name for name, _ in figure.rows] == ["p0", "p50", "p95", "p100"]
    assert figure.reading.startswith("Half of the requests have at most 20 tokens")


def test_dots_share_one_scale_and_gaps_stay_gaps() -> None:
    plot = dot_plot("ttft_p95_ms", {"a": [100.0, None, 300.0], "b": [200.0], "c": []})
    assert plot is not None
    a, b, c = plot.rows
    assert [dot.text for dot in a.dots] == ["repeat 1: 100", "repeat 3: 300"]
    assert a.dots[0].x < b.dots[0].x < a.dots[1].x and b.dots[0].x == pytest.approx(b.mean)
    assert (c.dots, c.mean, c.mean_text) == ([], None, "–")
    assert dot_plot("x", {"a": [None]}) is None


@pytest.mark.parametrize(("span", "wanted", "step"), [(10, 5, 2), (26, 5, 10), (1, 3, 0.5), (0, 5, 1)])
def test_ticks_are_round(span: float, wanted: int, step: float) -> None:
    assert nice_step(span, wanted) == pytest.approx(step)
