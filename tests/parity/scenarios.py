"""Seeded workloads on which two schedulers can be driven step by step, with every setting that decides something."""

import random
from dataclasses import asdict, dataclass, field
from typing import Any

from scheduler_core.policies.presets import Capacity, build_policy
from scheduler_core.request.spec import RequestSpec
from scheduler_core.sched.instance import Instance
from scheduler_core.testing.builders import policy_spec
from scheduler_core.types.time import NS_PER_S

SPARE_TOKENS = (60, 100, 200, 400, 2000)
"""Room in pools beyond what the longest request may need."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What both schedulers are built from. ``ahead``: a step is planned while the one before it is in flight."""

    size: int = 8
    token_budget: int = 64
    chunked: bool = True
    long_prefill_cap: int = 0
    by_priority: bool = False
    watermark: float = 0.0
    model_length: int = 256
    kv_blocks: int = 40
    block_size: int = 8
    prefix_cache: bool = True
    ahead: bool = False

    def instance(self) -> Instance:
        """Ours, as `vllm_v1`. Block 0 is no block there (V-13), so that ids can be compared."""
        spec = policy_spec(
            "vllm_v1",
            batch__size=self.size,
            batch__token_budget=self.token_budget,
            batch__chunked_prefill=self.chunked,
            **({"batch__long_prefill_cap": self.long_prefill_cap} if self.long_prefill_cap else {}),
            order__by="priority" if self.by_priority else "arrival",
            cache__watermark=self.watermark,
            cache__block_size=self.block_size,
            cache__prefix="hash" if self.prefix_cache else "none",
        )
        policy = build_policy(spec, Capacity(self.kv_blocks, self.model_length))
        return Instance(policy, depth=1 + self.ahead, plan_on_promises=self.ahead, first_block=1)


@dataclass(frozen=True, slots=True)
class Offer:
    """A request, offered before step ``step`` is planned; it ends by itself after ``output`` tokens.

    ``abort`` is the step before which its client gives up, -1 for never.
    """

    id: int
    step: int
    prompt: int
    output: int
    limit: int
    priority: int = 0
    seed: int = 0
    prefix_blocks: tuple[int, ...] = ()
    prefix_block_size: int = 16
    abort: int = -1

    @property
    def spec(self) -> RequestSpec:
        return RequestSpec(
            self.id,
            self.step * NS_PER_S,
            self.prompt,
            self.limit,
            priority=self.priority,
            seed=self.seed,
            prefix_blocks=self.prefix_blocks,
            prefix_block_size=self.prefix_block_size,
        )


@dataclass(frozen=True, slots=True)
class Scenario:
    """Settings and traffic."""

    settings: Settings
    offers: tuple[Offer, ...] = field(default=())

    def as_json(self) -> dict[str, Any]:
        """As it is recorded: offers without what is left at its default."""
        blank = asdict(Offer(0, 0, 0, 0, 0))
        always = ("id", "step", "prompt", "output", "limit")
        rows = [
            {name: value for name, value in asdict(offer).items() if name in always or value != blank[name]}
            for offer in self.offers
        ]
        return {"settings": asdict(self.settings), "offers": rows}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Scenario":
        rows = [{**row, "prefix_blocks": tuple(row.get("prefix_blocks", ()))} for row in data["offers"]]
        return cls(Settings(**data["settings"]), tuple(Offer(**row) for row in rows))


def draw(seed: int, **fixed: Any) -> Scenario:
    """A scenario of its own for every seed; ``fixed`` settings are not drawn.

    Pools are small against the traffic, and arrivals dense, so that most scenarios preempt; a few are roomy. No
    request can outgrow the pool: those are refused at submission here and wait for ever in vLLM.
    """
    choose = random.Random(seed)
    block_size = choose.choice((1, 2, 4, 8, 16, 32))
    model_length = choose.choice((96, 160, 256))
    chunked = choose.random() < 0.75
    budget = choose.choice((16, 40, 100, 300)) if chunked else model_length
    spare = [tokens // block_size for tokens in SPARE_TOKENS]
    drawn: dict[str, Any] = {
        "size": choose.choice((2, 4, 8, 16)),
        "token_budget": budget,
        "chunked": chunked,
        "long_prefill_cap": choose.choice((0, 0, 5, 24)) if chunked else 0,  # together they are refused here
        "by_priority": choose.random() < 0.4,
        "watermark": choose.choice((0.0, 0.0, 0.05, 0.3)),
        "model_length": model_length,
        "block_size": block_size,
        "kv_blocks": -(-model_length // block_size) + choose.choice((0, 1, 3, *spare)),
        "prefix_cache": choose.random() < 0.6,
    }
    settings = Settings(**{**drawn, **fixed})
    return Scenario(settings, tuple(_offers(choose, settings, count=choose.randint(3, 40))))


def _offers(choose: random.Random, settings: Settings, count: int) -> list[Offer]:
    gap, aborts = choose.choice((0, 1, 3)), choose.random() < 0.3
    prefix_block_size = choose.choice((4, settings.block_size, 16))
    chain = [choose.randrange(1000) for _ in range(6)]
    offers, step = [], 0
    for number in range(count):
        step += choose.randint(0, gap)
        prompt = min(choose.choice((1, 7, 32, choose.randint(1, 150))), settings.model_length - 1)
        limit = choose.randint(1, 80)
        shared = choose.randint(0, len(chain)) if choose.random() < 0.6 else 0
        prefix = (*chain[: max(0, shared - 1)], chain[0] + choose.randint(0, 1)) if shared else ()
        offers.append(
            Offer(
                id=number,
                step=step,
                prompt=prompt,
                output=limit if choose.random() < 0.5 else choose.randint(1, limit),
                limit=limit,
                priority=choose.choice((0, 0, 1, 5)),
                seed=choose.choice((number, number, 3)),
                prefix_blocks=prefix[: prompt // prefix_block_size],
                prefix_block_size=prefix_block_size,
                abort=step + choose.randint(0, 30) if aborts and choose.random() < 0.3 else -1,
            )
        )
    return offers
