"""The checks every policy must pass, for those who write one: ``python -m scheduler_core.testing.conformance NAME``.

Seeded traffic of several kinds is played on small pools with the laws checked after every step. Each check names what
it found; the exit status is 0 when all hold.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterator

from scheduler_core.policies.presets import Capacity, build_policy
from scheduler_core.policies.registry import manifests
from scheduler_core.policies.resolving import resolve
from scheduler_core.sim.cost import StepCost
from scheduler_core.sim.fastforward import FastForward
from scheduler_core.sim.rows import RequestRow
from scheduler_core.spec.policy import PolicySpec
from scheduler_core.testing.builders import Played, play, policy_spec, profile, request
from scheduler_core.types.arrival import PlannedRequest
from scheduler_core.types.errors import HeadwayError
from scheduler_core.types.noise import uniform
from scheduler_core.types.records import Finished, Step

TARGET = profile(
    base_ms=1.3, prefill_token_ms=0.02, decode_request_ms=0.05, context_token_ms=0.001, acceptance=0.6, draft_ratio=0.1
)
MODEL_LENGTH = 400


def traffic(kind: str, seed: int, count: int = 30) -> list[PlannedRequest]:
    """Seeded requests: ``burst`` (all at once), ``stream`` (over time), ``turns`` (each waits for an earlier one)."""

    def draw(name: str, index: int, low: int, high: int) -> int:
        return low + int(uniform(seed, f"{kind}/{name}", index) * (high - low + 1))

    requests, at_ms = [], 0.0
    for index in range(count):
        at_ms += 0 if kind == "burst" else draw("gap", index, 0, 12)
        output = draw("output", index, 1, 40)
        changes = {
            "output_limit": output + draw("above", index, 0, 20),
            "priority": draw("priority", index, 0, 2),
            "tenant": f"tenant-{draw('tenant', index, 0, 2)}",
            "prefix_blocks": tuple(range(draw("shared", index, 0, 3))),
        }
        prompt = draw("prompt", index, 1, 120)
        if kind == "turns" and index % 3:
            requests.append(
                request(index, prompt, output, at_ms=draw("think", index, 0, 20), after=(index - 1,), **changes)
            )
        else:
            requests.append(request(index, prompt, output, at_ms=at_ms, **changes))
    return requests


def everything_ends(spec: PolicySpec) -> Iterator[str]:
    """Every request ends once, finished ones with all their tokens and no block left; nothing waits for ever."""
    for played, requests in _plays(spec):
        outputs = {item.index: item.output_tokens for item in requests}
        ends = Counter(record.request for record in played.sink.of(Finished))
        if ends != Counter(list(outputs)):
            yield f"{len(outputs)} requests were offered, ends are {sorted(ends.items())}"
        for record in played.sink.of(Finished):
            if record.outcome == "finished" and record.output_tokens != outputs[record.request]:
                yield f"request {record.request} ended with {record.output_tokens} of {outputs[record.request]} tokens"
            if record.outcome not in ("finished", "rejected"):
                yield f"request {record.request} ended {record.outcome}: {record.reason}"
        if played.instance.occupancy().kv_used:
            yield f"{played.instance.occupancy().kv_used} blocks are still held at the end"


def steps_keep_their_limits(spec: PolicySpec) -> Iterator[str]:
    """No step computes more than its budget, and no request is served twice in one."""
    for played, _ in _plays(spec):
        for step in played.sink.of(Step):
            tokens, served = sum(row[3] for row in step.grants), [row[0] for row in step.grants]
            if tokens > step.budget or len(set(served)) != len(served):
                yield f"step {step.id} computes {tokens} of {step.budget} tokens for {served}"


def runs_repeat_exactly(spec: PolicySpec) -> Iterator[str]:
    """The same traffic gives the same plans again: no state is shared between instances, nothing is left to chance."""
    for (first, _), (second, _) in zip(_plays(spec), _plays(spec), strict=True):
        if first.report.plan_digests != second.report.plan_digests:
            pairs = enumerate(zip(first.report.plan_digests, second.report.plan_digests, strict=False))
            yield f"two runs differ from step {next((n for n, (a, b) in pairs if a != b), 'the end')} on"


def fast_forward_is_exact(spec: PolicySpec) -> Iterator[str]:
    """Simulated with and without fast-forward, each request ends at the same time with the same tokens."""
    for played, requests in _plays(spec):
        rows: list[RequestRow] = []
        FastForward(build_policy(spec, _capacity()), StepCost(TARGET), rows.append).run(requests)
        fast = {row.request: (row.end_ns, row.outcome, row.output_tokens) for row in rows}
        plain = {r.request: (r.at_ns, r.outcome, r.output_tokens) for r in played.sink.of(Finished)}
        wrong = [index for index in plain if plain[index] != fast.get(index)]
        if wrong:
            yield f"request {wrong[0]}: {plain[wrong[0]]} step by step, {fast.get(wrong[0])} by fast-forward"


CHECKS: tuple[Callable[[PolicySpec], Iterator[str]], ...] = (
    everything_ends,
    steps_keep_their_limits,
    runs_repeat_exactly,
    fast_forward_is_exact,
)


def faults(spec: PolicySpec) -> list[str]:
    """What is wrong with the policy of ``spec``: one line a fault, empty when it conforms."""
    found: list[str] = []
    for check in CHECKS:
        try:
            found += [f"{check.__name__}: {fault}" for fault in check(spec)]
        except HeadwayError as error:
            found.append(f"{check.__name__}: {type(error).__name__}: {error}")
    return found


def main(names: list[str]) -> int:
    """Check the named policies, or all that are installed."""
    status = 0
    for name in names or sorted(manifests()):
        found = faults(resolve(policy_spec(name)))
        print(f"{name}: {'conforms' if not found else 'does not conform'}")
        for fault in found:
            print(f"  {fault}")
        status |= bool(found)
    return status


def _capacity() -> Capacity:
    return Capacity(kv_blocks=40, model_length=MODEL_LENGTH, profile=TARGET)


def _plays(spec: PolicySpec) -> Iterator[tuple[Played, list[PlannedRequest]]]:
    for seed, kind in enumerate(("burst", "stream", "turns")):
        requests = traffic(kind, seed)
        yield play(spec, requests, capacity=_capacity(), target=TARGET), requests


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
