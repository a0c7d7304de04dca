"""Queues in lines keep the order of one queue, and who is passed over costs nothing."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_core.policies.presets import Capacity, build_policy
from scheduler_core.request.live import LiveRequest
from scheduler_core.request.spec import RequestSpec
from scheduler_core.sched.aging import Timed
from scheduler_core.sched.instance import Instance
from scheduler_core.sched.lines import lines_of, queue_of
from scheduler_core.testing.builders import policy_spec
from scheduler_core.types.plan import GrantResult, StepResult
from tests.core.test_linearity import calls

QUOTAS = {"cache__tenant_quota": 0.5, "cache__block_size": 4, "cache__prefix": "none"}
BOUNDED = {"order__by": "priority", "order__starvation_ms": 0.00003}  # 30 ns
OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["push", "push", "push_front", "remove", "take", "pass_over", "recall", "wait"]),
              st.integers(0, 11)),
    max_size=40,
)  # fmt: skip


@pytest.mark.parametrize("order", [{}, {"order__by": "priority"}, BOUNDED])
@settings(max_examples=60)
@given(operations=OPERATIONS)
def test_lines_keep_the_order_of_one_queue(order: Any, operations: Any) -> None:
    """Twelve requests of three tenants come, go, return and are passed over, as the clock goes on by 10 ns a wait.

    The plain queue of the same policy, less those passed over, is the model.
    """
    policy = build_policy(policy_spec("vllm_v1", **QUOTAS, **order), Capacity(10, 100))
    lined, plain = queue_of(policy), queue_of(replace(policy, quotas=None))
    lines = lines_of(lined)
    assert lines is not None and lines_of(plain) is None
    live = [
        LiveRequest(RequestSpec(n, n, 4, 4, tenant=f"t{n % 3}", priority=n % 2), seq=n, model_length=100)
        for n in range(12)
    ]
    passed: set[str] = set()
    for now, (operation, number) in enumerate(operations):
        item = live[number]
        if operation in ("push", "push_front") and item not in plain:
            item.preemptions = int(operation == "push_front")
            for queue in (lined, plain):
                queue.push_front(item) if item.preemptions else queue.push(item, policy.order.key(item))
        elif operation == "remove" and item in plain:
            for queue in (lined, plain):
                queue.remove(item)
        elif operation == "take" and not passed and plain:
            lined.restore(lined.take())
        elif operation == "pass_over":
            lines.pass_over(item.spec.tenant)
            passed.add(item.spec.tenant)
        elif operation == "recall":
            lines.recall()
            passed.clear()
        for queue in (lined, plain):
            if isinstance(queue, Timed):
                queue.begin(now * 10)
        assert list(lined) == list(plain)
        assert lined.head() is next((one for one in plain if one.spec.tenant not in passed), None)
        assert lined.tenants() == plain.tenants()
        if isinstance(plain, Timed) and isinstance(lined, Timed) and plain.wake_ns() is not None:
            assert lined.wake_ns() == plain.wake_ns()


def asked(queued: int, **order: Any) -> tuple[float, float]:
    """Calls per step, and waiting requests looked at per step, with ``queued`` of a tenant at its quota."""
    spec = policy_spec("vllm_v1", **{**QUOTAS, "batch__size": 64, **order})
    instance = Instance(build_policy(spec, Capacity(4_000, 8_192)))
    for index in range(queued):
        instance.submit(RequestSpec(index, 0, 3_996, 4_000, tenant="A"), 0)
    for index in range(queued, queued + 3):
        instance.submit(RequestSpec(index, 0, 32, 4_000, tenant="B"), 0)
    builder, looked = instance._builder, 0
    try_admit = builder._try_admit

    def counted(head: LiveRequest) -> Any:
        nonlocal looked
        looked += 1
        return try_admit(head)

    builder._try_admit = counted  # type: ignore[method-assign]

    def steps() -> None:
        for _ in range(10):
            planned = instance.plan(0)
            assert planned is not None
            answers = tuple([GrantResult(None)] * len(planned.plan.grants))
            instance.complete(StepResult(planned.plan.id, answers, (), 0, 1))
            instance.take_records()

    steps()
    assert len(instance._state.running) == 4  # one of A, who holds half the pool, and all of B
    looked = 0
    return calls(steps) / 10, looked / 10


@pytest.mark.parametrize("order", [{}, BOUNDED, {"admission__throttle_requests_per_s": 1e9}])
def test_who_waits_for_its_quota_costs_nothing(order: Any) -> None:
    """Of the tenant at its quota one request is looked at per step, whether 20 of it wait or 2,000."""
    (few, looked), (many, looked_at_many) = asked(20, **order), asked(2_000, **order)
    assert looked == looked_at_many == 1
    assert many == pytest.approx(few, rel=0.02)
