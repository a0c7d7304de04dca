"""Random events on an instance with a tiny pool: after each, blocks and requests are conserved, and all work ends."""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from scheduler_core.policies.presets import Capacity
from scheduler_core.request.lifecycle import State
from scheduler_core.spec.policy import ExecutionSection
from scheduler_core.testing.builders import Stepper, policy_spec

POLICIES = st.one_of(
    st.builds(
        lambda name, way, host, size: policy_spec(
            name,
            cache__share_samples=True,
            cache__block_size=2,
            cache__preemption=way,
            cache__host_blocks=host,
            batch__size=size,
            batch__token_budget=6,
        ),
        st.sampled_from(["vllm_v1", "sarathi", "sglang", "nano", "vtc"]),
        st.sampled_from(["recompute", "swap", "keep"]),
        st.integers(1, 8),
        st.integers(2, 4),
    ),
    st.builds(
        lambda order, prefix, admit, chunked, cap, size: policy_spec(
            "vllm_v1",
            order__by=order,
            cache__prefix=prefix,
            cache__admit=admit,
            cache__block_size=2,
            cache__watermark=0.2,
            batch__chunked_prefill=chunked,
            batch__long_prefill_cap=cap,
            batch__size=size,
            batch__token_budget=6,
        ),
        st.sampled_from(["arrival", "priority", "urgency", "shortest"]),
        st.sampled_from(["none", "hash"]),
        st.sampled_from(["known", "limit"]),
        st.booleans(),
        st.sampled_from([0, 2]),
        st.integers(1, 4),
    ),
    st.builds(
        lambda name, size, budget: policy_spec(name, batch__size=size, batch__token_budget=budget, cache__block_size=2),
        st.sampled_from(["sarathi", "sglang", "vtc", "nano", "reserve_max", "fastserve"]),
        st.integers(1, 4),
        st.integers(4, 6),
    ),
    st.builds(
        lambda name, order, host, watermark, size: policy_spec(
            name,
            order__by=order,
            cache__block_size=2,
            cache__preemption="swap",
            cache__host_blocks=host,
            **({"cache__host_watermark": watermark, "order__quantum_ms": 0.000002} if name == "fastserve" else {}),
            batch__size=size,
            batch__token_budget=6,
        ),
        *(st.sampled_from(names) for names in (["fastserve", "vllm_v1"], ["levels"])),
        st.integers(1, 8),
        st.sampled_from([0, 0.1, 0.6]),
        st.integers(1, 4),
    ),
    st.builds(
        lambda order, way, host, size: policy_spec(
            "vllm_v1",
            order__by=order,
            cache__block_size=2,
            cache__preemption=way,
            cache__host_blocks=host,
            batch__size=size,
            batch__token_budget=6,
        ),
        st.sampled_from(["arrival", "priority", "urgency", "shortest"]),
        st.sampled_from(["swap", "keep"]),
        st.integers(1, 8),
        st.integers(1, 4),
    ),
    st.builds(
        lambda by, length, admit, bound, size: policy_spec(
            "vllm_v1",
            order__by=by,
            order__length=length,
            order__takes_slots=True,
            order__starvation_ms=bound,
            cache__admit=admit,
            cache__block_size=2,
            predict__by="mean",
            batch__size=size,
            batch__token_budget=6,
        ),
        st.sampled_from(["shortest", "shortest_prefill", "longest", "response_ratio", "deadline", "levels"]),
        st.sampled_from(["declared", "predicted", "hidden"]),
        st.sampled_from(["first_chunk", "known", "predicted", "limit"]),
        st.sampled_from([0, 0.000004]),
        st.integers(1, 4),
    ),
    st.builds(
        lambda prefix, size: policy_spec(
            "static", batch__size=size, batch__token_budget=6, cache__block_size=2, cache__prefix=prefix
        ),
        st.sampled_from(["none", "hash"]),
        st.integers(1, 3),
    ),
)


class InstanceMachine(RuleBasedStateMachine):
    """Submits, steps, aborts and preempts at random; at the end everything must drain."""

    @initialize(
        spec=POLICIES,
        blocks=st.integers(2, 7),
        depth=st.integers(1, 2),
        ahead=st.booleans(),
        drafts=st.sampled_from([0, 0, 2, 5]),
    )
    def make(self, spec: Any, blocks: Any, depth: Any, ahead: Any, drafts: Any) -> None:
        spec = spec.model_copy(update={"execution": ExecutionSection(draft_tokens=drafts)})
        # Whoever drafts has to know the newest token.
        self.stepper = Stepper(spec, Capacity(blocks, 40), depth=depth, plan_on_promises=ahead and not drafts)
        self.depth = depth
        self.offered = 0
        self.flight: list[Any] = []
        self.left: dict[int, int] = {}

    @rule(prompt=st.integers(1, 9), output=st.integers(1, 6), priority=st.integers(0, 2), shared=st.integers(0, 3))
    def submit(self, prompt: Any, output: Any, priority: Any, shared: Any) -> None:
        index = self.offered
        self.offered += 1
        refused = self.stepper.submit(
            index,
            prompt,
            limit=6,
            priority=priority,
            tenant=f"t{priority}",
            prefix_blocks=tuple(range(shared)),
            prefix_block_size=2,
        )
        if refused is None:
            self.left[index] = output

    @rule(prompt=st.integers(1, 7), output=st.integers(1, 6), samples=st.integers(2, 4))
    def submit_samples(self, prompt: Any, output: Any, samples: Any) -> None:
        group = self.offered
        for index in range(group, group + samples):
            self.offered += 1
            if self.stepper.submit(index, prompt, limit=6, seed=group, group=group) is None:
                self.left[index] = output

    @rule()
    def plan(self) -> None:
        if len(self.flight) < self.depth:
            planned = self.stepper.try_plan()
            if planned is not None:
                assert planned.plan.tokens <= 6
                self.flight.append(planned)

    @rule()
    def complete(self) -> None:
        if self.flight:
            planned = self.flight.pop(0)
            accepted = {}
            for grant in planned.plan.grants:
                if grant.drafts and grant.request in self.left:
                    most = min(grant.drafts, self.left[grant.request] - 1)
                    accepted[grant.request] = (planned.plan.id + grant.request) % (most + 1)
            sampled = [g.request for g in planned.plan.grants if g.samples and g.request in self.left]
            last = [request for request in sampled if self.left[request] == 1 + accepted.get(request, 0)]
            completed = self.stepper.complete(planned, last=last, accepted=accepted)
            for _, request in completed.emitted:
                self.left[request] -= 1
            for ended in completed.ended:
                assert self.left.pop(ended.request) >= 0

    @rule(data=st.data())
    def abort(self, data: Any) -> None:
        if self.left:
            request = data.draw(st.sampled_from(sorted(self.left)))
            assert self.stepper.instance.abort(request) is not None
            assert self.stepper.instance.abort(request) is None
            del self.left[request]

    @rule(data=st.data())
    def preempt(self, data: Any) -> None:
        running = [r for r in self.left if self.stepper.instance.state_of(r) is State.RUNNING]
        if running:
            self.stepper.instance.preempt(data.draw(st.sampled_from(running)), now_ns=self.stepper.now)

    @rule(force=st.booleans())
    def reset_cache(self, force: Any) -> None:
        self.stepper.instance.reset_cache(self.stepper.now, force=force)

    @invariant()
    def lawful(self) -> None:
        if hasattr(self, "stepper"):
            self.stepper.instance.check()
            assert sorted(self.left) == self.stepper.instance.open_requests()

    def teardown(self) -> None:
        if not hasattr(self, "stepper"):
            return
        for _ in range(2000):
            if not self.left:
                break
            self.plan()
            self.complete()
        assert not self.left, "work did not end"
        while self.flight:
            self.complete()
        assert self.stepper.instance.occupancy().kv_used == 0


TestInstance = InstanceMachine.TestCase
TestInstance.settings = settings(max_examples=60, stateful_step_count=25)
