"""Freezing: the laws every plan obeys, and the rules of each kind of traffic worked out by hand."""

import io
from collections import Counter, defaultdict
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_core.spec.parse import parse
from scheduler_core.spec.workload import Trace, WorkloadSpec
from scheduler_core.types.arrival import PlannedRequest
from scheduler_core.types.errors import InputError
from scheduler_core.types.time import NS_PER_S
from scheduler_core.workload.freeze import freeze
from scheduler_core.workload.plan import ArrivalPlan
from scheduler_core.workload.traces.reader import read_trace
from tests.workload.examples import CHAT, SPECS, TRACE_LINES


def frozen(data: dict[str, Any], rows: bytes = b"") -> ArrivalPlan:
    spec = parse(WorkloadSpec, data)
    return freeze(spec, trace=read_trace(io.BytesIO(rows), spec.trace) if spec.trace else None)


def problem(data: dict[str, Any], rows: bytes = b"") -> str:
    with pytest.raises(InputError) as caught:
        frozen(data, rows)
    (found,) = caught.value.problems
    return str(found)


ARRIVALS = st.sampled_from(
    [
        {"constant": {"rate_rps": 5}},
        {"poisson": {"rate_rps": 5}},
        {"gamma": {"rate_rps": 5, "burstiness": 0.2}},
        {"closed": {"concurrency": 7, "think_s": 0.5}},
        {"closed": {"concurrency": 7}},
        {"ramp": {"from_rps": 9, "to_rps": 1, "over_s": 10}},
        {"step": {"stages": [{"rate_rps": 0, "for_s": 2}, {"rate_rps": 8, "for_s": 1}]}},
        {"quantiles": {"gaps": {"values": [0, 2, 2]}, "rate_rps": 5}},
    ]
)
SESSIONS = st.none() | st.builds(
    lambda high, think: {"turns": {"uniform": {"low": 1, "high": high}}, "think_s": think},
    st.integers(1, 6),
    st.sampled_from([0, 0.5, 30]),
)
PREFIX = st.none() | st.builds(
    lambda groups, tokens, share: {"groups": groups, "tokens": tokens, "share": share},
    st.integers(1, 5),
    st.integers(16, 400),
    st.floats(0, 1),
)
WORKLOADS = st.builds(
    lambda arrivals, sessions, prefix, requests, seed: {
        "arrivals": arrivals,
        "lengths": {"prompt": {"uniform": {"low": 1, "high": 300}}, "output": {"uniform": {"low": 1, "high": 60}}},
        "requests": requests,
        "sessions": sessions,
        "prefix": prefix,
        "seed": seed,
        "tiers": {"x": {"share": 0.7}, "y": {"share": 0.3, "priority": 4}},
        "tenants": {"p": {"share": 0.5}, "q": {"share": 0.5}},
    },
    ARRIVALS,
    SESSIONS,
    PREFIX,
    st.integers(1, 120),
    st.integers(0, 2**63 - 1),
)


@settings(max_examples=150)
@given(WORKLOADS)
def test_laws_of_every_plan(data: dict[str, Any]) -> None:
    """Dense indices, rising own arrivals, dependencies that come before, limits that hold, ids within the prompt."""
    requests = frozen(data).requests
    assert [request.index for request in requests] == list(range(data["requests"]))
    own = [request.arrival_ns for request in requests if not request.after]
    assert own == sorted(own) and own[0] >= 0
    waited_for = [request.after for request in requests if request.after]
    assert len(set(waited_for)) == len(waited_for), "an answer releases one request"
    for request in requests:
        assert all(0 <= parent < request.index for parent in request.after)
        assert request.arrival_ns >= 0
        assert 1 <= request.output_tokens <= request.output_limit
        assert request.prompt_tokens >= 1
        assert len(request.prefix_blocks) <= -(-request.prompt_tokens // 16)
        assert request.priority == (4 if request.tier == "y" else 0)
        assert 0 <= request.seed < 2**63
    assert len({request.seed for request in requests}) == len(requests)


@settings(max_examples=60)
@given(WORKLOADS.filter(lambda data: data["sessions"] is not None))
def test_laws_of_sessions(data: dict[str, Any]) -> None:
    """A turn repeats all before it: its prompt is longer than prompt + answer before, and begins with its blocks."""
    turns: dict[int, list[PlannedRequest]] = defaultdict(list)
    for request in frozen(data).requests:
        assert request.session is not None
        turns[request.session].append(request)
    private: Counter[int] = Counter()
    shared_ids = set(range(5 * 25))  # at most 5 groups of 400 // 16 blocks come first
    for session in turns.values():
        assert [request.turn for request in session] == list(range(len(session)))
        assert len({(request.tenant, request.tier) for request in session}) == 1
        for before, request in pairwise(session):
            assert request.after == (before.index,)
            assert request.arrival_ns == round(data["sessions"]["think_s"] * NS_PER_S)
            assert request.prompt_tokens > before.prompt_tokens + before.output_tokens
            assert request.prefix_blocks[: len(before.prefix_blocks)] == before.prefix_blocks
        last = session[-1]
        assert len(last.prefix_blocks) == -(-last.prompt_tokens // 16), "every block of a conversation has an id"
        private.update(item for item in last.prefix_blocks if item not in shared_ids)
    assert not private or max(private.values()) == 1, "no block of one conversation is in another"


def test_closed_loop_by_hand() -> None:
    """Three users: requests 0-2 at once, then each user's next half a second after their last answer."""
    requests = frozen(SPECS["closed"] | {"requests": 8}).requests
    assert [(request.after, request.arrival_ns) for request in requests] == [
        *[((), 0)] * 3,
        *[((index,), NS_PER_S // 2) for index in range(5)],
    ]


def test_open_sessions_by_hand() -> None:
    """One conversation a second of two turns (2 requests/s), 0.3 s between answer and next turn.

    Planned times 0, 0.3, 1, 1.3, 2, 2.3: rows alternate, and each second row waits for the one above it.
    Prompts: 100 new tokens, then 100 + 20 answered + 100 new.
    """
    plan = frozen(
        {
            "arrivals": {"constant": {"rate_rps": 2}},
            "lengths": {"prompt": {"fixed": 100}, "output": {"fixed": 20}},
            "requests": 6,
            "sessions": {"turns": {"fixed": 2}, "think_s": 0.3},
            "block_size": 50,
        }
    )
    rows = [(r.session, r.turn, r.after, r.arrival_ns, r.prompt_tokens, r.prefix_blocks) for r in plan.requests]
    assert rows == [
        (0, 0, (), 0, 100, (0, 1)),
        (0, 1, (0,), 300_000_000, 220, (0, 1, 2, 3, 4)),
        (1, 0, (), NS_PER_S, 100, (5, 6)),
        (1, 1, (2,), 300_000_000, 220, (5, 6, 7, 8, 9)),
        (2, 0, (), 2 * NS_PER_S, 100, (10, 11)),
        (2, 1, (4,), 300_000_000, 220, (10, 11, 12, 13, 14)),
    ]


def test_closed_sessions_by_hand() -> None:
    """Two users, conversations of two turns: the third waits for the end of the first, after the user's pause."""
    plan = frozen(
        {
            "arrivals": {"closed": {"concurrency": 2, "think_s": 5}},
            "lengths": {"prompt": {"fixed": 10}, "output": {"fixed": 10}},
            "requests": 7,
            "sessions": {"turns": {"fixed": 2}, "think_s": 1},
        }
    )
    rows = [(r.session, r.turn, r.after, r.arrival_ns // NS_PER_S) for r in plan.requests]
    assert rows == [
        (0, 0, (), 0),
        (1, 0, (), 0),
        (0, 1, (0,), 1),
        (1, 1, (1,), 1),
        (2, 0, (2,), 5),
        (3, 0, (3,), 5),
        (2, 1, (4,), 1),
    ]


def test_sessions_keep_the_rate_of_requests() -> None:
    """4 requests/s in conversations of 1 to 5 turns: 2,000 requests' first turns span about 500 s."""
    plan = frozen(SPECS["sessions"] | {"requests": 2000})
    starts = [request.arrival_ns for request in plan.requests if request.turn == 0]
    assert 2000 / (starts[-1] / NS_PER_S) == pytest.approx(4, rel=0.15)
    assert len(starts) == pytest.approx(2000 / 3, rel=0.1)


def test_equal_prefix_ids_mean_equal_group() -> None:
    """3 groups of 100 tokens in blocks of 32: three whole blocks each, ids 0-2, 3-5 and 6-8, equally likely."""
    plan = frozen(SPECS["people"] | {"requests": 3000})
    whole = Counter(r.prefix_blocks for r in plan.requests if len(r.prefix_blocks) == 3)
    assert set(whole) == {(0, 1, 2), (3, 4, 5), (6, 7, 8)}
    for request in plan.requests:
        ids = request.prefix_blocks
        assert not ids or ids == tuple(range(ids[0], ids[0] + len(ids)))
        assert not ids or ids[0] in (0, 3, 6)
        assert len(ids) in (0, min(3, request.prompt_tokens // 32))
    sharing = sum(bool(r.prefix_blocks) or r.prompt_tokens < 32 for r in plan.requests)
    assert sharing / 3000 == pytest.approx(0.6, abs=4 * (0.6 * 0.4 / 3000) ** 0.5)
    assert "cut to 96 tokens: 3 whole blocks of 32" in " ".join(plan.notes)


def test_shares_are_met_within_binomial_bounds() -> None:
    """Four standard deviations around the share, and tenant and tier independent of each other."""
    requests = frozen(SPECS["people"] | {"requests": 4000}).requests
    for name, share in (("chat", 0.9), ("batch", 0.1)):
        found = sum(request.tier == name for request in requests)
        assert abs(found - 4000 * share) < 4 * (4000 * share * (1 - share)) ** 0.5
    found = sum(request.tenant == "a" and request.tier == "chat" for request in requests)
    assert abs(found - 900) < 4 * (4000 * 0.225 * 0.775) ** 0.5
    assert {request.priority for request in requests if request.tier == "chat"} == {-1}


def test_a_share_of_zero_is_never_drawn() -> None:
    tiers = {"never": {"share": 0}, "ever": {"share": 1}}
    plan = frozen(SPECS["poisson"] | {"tiers": tiers, "requests": 500})
    assert {request.tier for request in plan.requests} == {"ever"}


def test_the_order_of_writing_does_not_matter() -> None:
    """Specs that are equal have one digest and so must have one plan."""
    tiers = SPECS["people"]["tiers"]
    backwards = SPECS["people"] | {"tiers": dict(reversed(tiers.items()))}
    assert frozen(backwards).digest == frozen(SPECS["people"]).digest


def test_streams_are_independent() -> None:
    """Changing how outputs are drawn leaves times, prompts, people and seeds as they were."""
    other = SPECS["people"] | {"lengths": {**CHAT, "output": {"fixed": 5}}}

    def rest(plan: ArrivalPlan) -> list[tuple[object, ...]]:
        return [(r.arrival_ns, r.prompt_tokens, r.tenant, r.tier, r.seed, r.prefix_blocks) for r in plan.requests]

    assert rest(frozen(other)) == rest(frozen(SPECS["people"]))


def test_fewer_requests_are_the_first_of_more() -> None:
    few, many = (frozen(SPECS["poisson"] | {"requests": n, "output_limit": 50}).requests for n in (20, 50))
    assert few == many[:20]


def test_another_seed_is_another_plan_of_the_same_rate() -> None:
    one, two = (frozen(SPECS["poisson"] | {"seed": seed, "requests": 4000}) for seed in (1, 2))
    assert one.digest != two.digest
    for plan in (one, two):
        rate = 3999 / (plan.requests[-1].arrival_ns / NS_PER_S)
        assert rate == pytest.approx(4, rel=4 / 4000**0.5)


def test_output_limits() -> None:
    base = {
        "arrivals": {"constant": {"rate_rps": 1}},
        "lengths": {"prompt": {"fixed": 5}, "output": {"uniform": {"low": 3, "high": 9}}},
        "requests": 100,
    }
    longest = max(request.output_tokens for request in frozen(base).requests)
    assert longest == 9
    assert {request.output_limit for request in frozen(base).requests} == {9}
    assert {request.output_limit for request in frozen(base | {"output_limit": 64}).requests} == {64}
    exact = frozen(base | {"output_limit": "exact"}).requests
    assert [request.output_limit for request in exact] == [request.output_tokens for request in exact]
    over = sum(request.output_tokens > 7 for request in exact)
    assert problem(base | {"output_limit": 7}) == (
        f"output_limit: 7 is below the longest output of this workload (9 tokens; {over} of 100 requests are longer); "
        'use at least 9, or "longest"'
    )


def test_a_profile_brings_its_notes_and_scales() -> None:
    plan = frozen(SPECS["profile"])
    assert "CC-BY 4.0" in " ".join(plan.notes) and "no row of the trace is replayed" in plan.notes[0]
    whole = frozen(SPECS["profile"] | {"lengths_scale": 1.0})
    assert all(
        small.prompt_tokens == pytest.approx(large.prompt_tokens / 4, abs=0.7)
        for small, large in zip(plan.requests, whole.requests, strict=True)
        if large.prompt_tokens > 4
    )


def test_unknown_profile_is_named_with_the_nearest() -> None:
    assert problem(SPECS["profile"] | {"profile": "azure-2023-cnov"}) == (
        "profile: there is no profile 'azure-2023-cnov'; did you mean 'azure-2023-conv'?"
    )


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"lengths": {"prompt": {"fixed": 10**9}, "output": {"fixed": 1}}}, "lengths.prompt"),
        ({"lengths": {"prompt": {"fixed": 1}, "output": {"fixed": 10**30}}}, "lengths.output"),
        ({"lengths": {"prompt": {"lognormal": {"mean": 1e300, "stdev": 1e300}}, "output": {"fixed": 1}}}, "lengths.p"),
        ({"arrivals": {"poisson": {"rate_rps": 1e-300}}}, "arrivals"),
        (
            {"sessions": {"turns": {"fixed": 3}}, "lengths": {"prompt": {"fixed": 9 * 10**7}, "output": {"fixed": 1}}},
            "sessions.turns",
        ),
    ],
)
def test_absurd_sizes_are_refused_by_field(change: dict[str, Any], where: str) -> None:
    assert problem(SPECS["poisson"] | change).startswith(where)


# --- traces ---------------------------------------------------------------------------------------------------------


def test_a_trace_is_replayed_as_it_is(mooncake_bytes: bytes) -> None:
    plan = frozen({"trace": {"file": "given"}}, mooncake_bytes)
    assert plan.block_size == 512
    rows = [(r.arrival_ns // 10**6, r.prompt_tokens, r.output_tokens, list(r.prefix_blocks)) for r in plan.requests]
    assert rows == [tuple(line.values()) for line in TRACE_LINES]


def test_a_slice_stretched_and_scaled_by_hand(mooncake_bytes: bytes) -> None:
    """Rows 2-4 at 0, 3, 6 s; two gaps at 4/s last 0.5 s. Lengths halved, half up; blocks of 256.

    513 tokens become 257 (256.5 up), still two blocks; 400 become 200, one block; 1 output stays 1, 7 becomes 4.
    """
    data = {"trace": {"file": "given", "rows": "2-4", "rate_rps": 4, "lengths_scale": 0.5}}
    plan = frozen(data, mooncake_bytes)
    assert plan.block_size == 256
    rows = [(r.arrival_ns, r.prompt_tokens, r.output_tokens, r.prefix_blocks) for r in plan.requests]
    assert rows == [(0, 512, 4, (1, 3)), (250_000_000, 257, 1, (1, 4)), (500_000_000, 200, 45, (5,))]


def test_same_instants_spread_by_hand(mooncake_bytes: bytes) -> None:
    """Two rows at 0 with the next time at 3 s: 0 and 1.5 s."""
    plan = frozen(SPECS["spread trace"], mooncake_bytes)
    assert [request.arrival_ns // 10**6 for request in plan.requests] == [0, 1500, 3000, 6000]


def test_requests_takes_the_first_rows(mooncake_bytes: bytes) -> None:
    assert len(frozen({"trace": {"file": "given"}, "requests": 3}, mooncake_bytes).requests) == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"trace": {"file": "x", "rows": "3-5"}}, "trace.rows: 3-5 reaches past the end: the trace has 4 usable rows"),
        ({"requests": 9}, "requests: 9 are asked for, but the trace has 4 usable rows to play"),
        ({"trace": {"file": "x", "rows": "1-2", "rate_rps": 1}}, "trace.rate_rps: all 2 rows have one time"),
        ({"trace": {"file": "x", "lengths_scale": 100}, "output_limit": 9}, "output_limit: 9 is below"),
        ({"prefix": {}}, "prefix: the trace brings its own prefix blocks"),
    ],
)
def test_what_a_trace_cannot_satisfy_is_named(change: dict[str, Any], message: str, mooncake_bytes: bytes) -> None:
    assert problem({"trace": {"file": "x"}} | change, mooncake_bytes).startswith(message)


def test_tiers_and_tenants_of_a_trace() -> None:
    rows = b"at,in,out,who,class\n0,5,5,alice,gold\n1,5,5,bob,iron\n"
    columns = {"arrival": "at", "prompt_tokens": "in", "output_tokens": "out", "tenant": "who", "tier": "class"}
    data: dict[str, Any] = {"trace": {"file": "x", "format": "csv", "columns": columns, "time_unit": "s"}}
    assert problem(data, rows) == (
        "tiers: the trace has rows of 'gold', 'iron'; declare them here with their objectives"
    )
    data["tiers"] = {"gold": {"share": 0.5, "priority": -3}, "iron": {"share": 0.5}}
    requests = frozen(data, rows).requests
    assert [(r.tenant, r.tier, r.priority) for r in requests] == [("alice", "gold", -3), ("bob", "iron", 0)]
    assert problem(data | {"tenants": {"alice": {}}}, rows).startswith("tenants: the trace has rows of 'bob'")


def test_lengths_without_times_need_a_rate() -> None:
    """Evenly spaced in file order; 2/s puts the third row at 1 s."""
    rows = b"num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio\n9,3,12,3\n8,2,10,9\n7,1,8,0\n"
    assert problem({"trace": {"file": "x"}}, rows).startswith("trace.rate_rps: is missing: the file has lengths but no")
    plan = frozen({"trace": {"file": "x", "rate_rps": 2}}, rows)
    assert [(r.arrival_ns, r.prompt_tokens) for r in plan.requests] == [(0, 9), (NS_PER_S // 2, 8), (NS_PER_S, 7)]


def test_rows_must_be_given_exactly_when_the_spec_names_a_trace(mooncake_bytes: bytes) -> None:
    with pytest.raises(InputError, match="trace: its rows are missing"):
        freeze(parse(WorkloadSpec, SPECS["trace"]))
    data = read_trace(io.BytesIO(mooncake_bytes), Trace(file="given"))
    with pytest.raises(InputError, match="names no trace"):
        freeze(parse(WorkloadSpec, SPECS["poisson"]), trace=data)


def test_generated_prefixes_on_a_trace_without_its_own() -> None:
    """All rows share one prefix of 32 tokens; the third prompt has room for one block of 16 only."""
    rows = b"arrived_at,num_prefill_tokens,num_decode_tokens\n0,100,1\n1,32,1\n2,31,1\n"
    plan = frozen({"trace": {"file": "x"}, "prefix": {"tokens": 40}}, rows)
    assert [request.prefix_blocks for request in plan.requests] == [(0, 1), (0, 1), (0,)]
    assert "shared prefixes are cut to 32 tokens: 2 whole blocks of 16" in plan.notes


def test_clients_that_give_up_do_so_between_the_two_times_and_nothing_else_changes(tmp_path: Any) -> None:
    """A quarter of 2,000: 500 within four standard deviations (19.4 each)."""
    plain = {"arrivals": {"poisson": {"rate_rps": 5}}, "lengths": CHAT, "requests": 2000}
    plan = frozen({**plain, "cancels": {"share": 0.25, "from_ms": 200, "to_ms": 300}})
    times = [request.cancel_ns for request in plan.requests if request.cancel_ns is not None]
    assert 420 < len(times) < 580
    assert all(200_000_000 <= time < 300_000_000 for time in times)
    assert [(r.arrival_ns, r.prompt_tokens, r.output_tokens) for r in plan.requests] == [
        (r.arrival_ns, r.prompt_tokens, r.output_tokens) for r in frozen(plain).requests
    ]
    assert plan.digest != frozen(plain).digest
    plan.write(tmp_path / "plan.gz")
    assert ArrivalPlan.read(tmp_path / "plan.gz") == plan


def test_samples_by_hand(tmp_path: Any) -> None:
    """Two users in closed loop, three prompts, two samples of each: the third prompt waits for both samples of the
    first. Prompt, length and seed are those of one sample, what is drawn for the answer is not.
    """
    plain = {"arrivals": {"closed": {"concurrency": 2}}, "lengths": CHAT, "requests": 3}
    alone, plan = frozen(plain), frozen({**plain, "samples": 2})
    assert [(r.index, r.group, r.after) for r in plan.requests] == [
        (0, 0, ()),
        (1, 0, ()),
        (2, 2, ()),
        (3, 2, ()),
        (4, 4, (0, 1)),
        (5, 4, (0, 1)),
    ]
    for request in plan.requests:
        single = alone.requests[request.index // 2]
        assert (request.prompt_tokens, request.output_tokens, request.seed, request.arrival_ns) == (
            single.prompt_tokens,
            single.output_tokens,
            single.seed,
            single.arrival_ns,
        )
        assert (request.draw_seed == single.draw_seed) == (request.index == request.group)
    assert len({request.draw_seed for request in plan.requests}) == 6
    assert "each of 3 prompts is answered 2 times, by as many requests" in plan.notes
    plan.write(tmp_path / "plan.gz")
    assert ArrivalPlan.read(tmp_path / "plan.gz") == plan
    assert frozen({**plain, "samples": 1}).digest == alone.digest


@pytest.mark.parametrize(
    ("samples", "requests", "message"),
    [
        (0, 5, "greater than 0"),
        (129, 5, "less than or equal to 128"),
        (128, 100_000, "are over 10,000,000"),
    ],
)
def test_samples_that_make_no_sense_are_refused(samples: int, requests: int, message: str) -> None:
    arrivals = {"constant": {"rate_rps": 1}}
    with pytest.raises(InputError, match=message):
        frozen({"arrivals": arrivals, "lengths": CHAT, "requests": requests, "samples": samples})


def test_moments_and_limits_that_make_no_sense_are_refused() -> None:
    plain = {"arrivals": {"poisson": {"rate_rps": 5}}, "lengths": CHAT, "requests": 5}
    assert "to_ms (1) must not be below from_ms (2)" in problem({**plain, "cancels": {"from_ms": 2, "to_ms": 1}})
    tiers = {"default": {"queue_timeout_ms": 9, "timeout_ms": 5}}
    assert "queue_timeout_ms (9) is above timeout_ms (5)" in problem({**plain, "tiers": tiers})
