"""One tenant or tier beside the others, or without them: whose requests stay as they are, and how many others come."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from scheduler_core.spec.base import Name, Spec

MOST_TIMES = 8

Times = Annotated[int, Field(ge=0, le=MOST_TIMES)]
IsolationMetric = Literal["ttft_p50_ms", "ttft_p95_ms", "ttft_p99_ms", "e2e_p50_ms", "e2e_p95_ms", "e2e_p99_ms"]


class _OneClass(Spec):
    """A tenant or a tier."""

    tenant: Name | None = Field(None, description="The tenant whose requests stay exactly as they are.")
    tier: Name | None = Field(None, description="Or the tier.")

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.tenant is None) == (self.tier is None):
            raise ValueError("name either a tenant or a tier")
        return self

    @property
    def kind(self) -> Literal["tenant", "tier"]:
        """``tenant`` or ``tier``."""
        return "tenant" if self.tenant is not None else "tier"

    @property
    def who(self) -> str:
        """Name of the tenant or tier."""
        return self.tenant or self.tier or ""

    @property
    def words(self) -> str:
        """``tenant a`` or ``tier chat``, as classes are called in summaries."""
        return f"{self.kind} {self.who}"


class Others(_OneClass):
    """Requests of one tenant or tier as they are; everybody else's ``times`` over."""

    times: Times = Field(0, description="0: nobody else sends anything; 1: as they are; 2: twice as many.")


class IsolationSpec(_OneClass):
    """Every arm with few others and with many: how much one tenant or tier feels of them."""

    others: tuple[Times, Times] = Field(
        (0, 1), description="Others' load in the two runs: 0, 1 is alone and beside the others; 1, 2 doubles them."
    )
    metric: IsolationMetric = Field("ttft_p95_ms", description="The tail of the tenant or tier that is compared.")

    @model_validator(mode="after")
    def _rising(self) -> Self:
        if self.others[0] >= self.others[1]:
            raise ValueError("others: the second number must be larger")
        return self

    def at(self, times: float) -> Others:
        """What a workload plays where the others send ``times`` over."""
        return Others(tenant=self.tenant, tier=self.tier, times=int(times))


def times_words(times: float) -> str:
    """Others' load in words."""
    return {0: "alone", 1: "beside the others"}.get(int(times), f"beside {times:g} times the others")
