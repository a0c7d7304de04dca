"""What becomes of the KV of a request that has to stop: ways to answer `scheduler_core.sched.policy.Preemption`."""

from dataclasses import dataclass

from scheduler_core.sched.decisions import Remedy
from scheduler_core.spec.target import Affine, HostLink
from scheduler_core.types.shape import causal_pairs


@dataclass(frozen=True, slots=True)
class SwapOut:
    """Always copied to the host, as long as there is room (DS-03, FS-05)."""

    keeps: bool = False
    copies: bool = True

    def weigh(self, tokens: int, blocks: int) -> Remedy:
        return Remedy(swap=True)


@dataclass(frozen=True, slots=True)
class KeepBlocks:
    """Who finds no block waits with those it has; one that has to stop for another reason is computed again."""

    keeps: bool = True
    copies: bool = False

    def weigh(self, tokens: int, blocks: int) -> Remedy:
        return Remedy(swap=False)


@dataclass(frozen=True, slots=True)
class CheaperWay:
    """Copied if that takes less time, there and back, than computing the tokens again in one step; by estimate."""

    link: HostLink
    cost: Affine
    block_size: int
    keeps: bool = False
    copies: bool = True

    def weigh(self, tokens: int, blocks: int) -> Remedy:
        copied = -(-tokens // self.block_size)
        copy_ns = 2 * self.link.copy_ns(copied, self.block_size)
        cost = self.cost
        recompute_ns = round(cost.prefill_token_ns * tokens + cost.prefill_pair_ns * causal_pairs(0, tokens))
        return Remedy(copy_ns < recompute_ns, copy_ns, recompute_ns)
