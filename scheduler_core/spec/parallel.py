"""How one instance is spread over several devices: what a person says of it, and what a profile keeps of it."""

from pydantic import Field

from scheduler_core.spec.base import PositiveFloat, PositiveInt, Seed, Spec

MOST_DEVICES = 1024


class Parallel(Spec):
    """One instance over several devices: tensor x pipeline x data of them; needs a profile MODEL@DEVICE."""

    tensor: PositiveInt = Field(
        1,
        le=MOST_DEVICES,
        description="Devices that share each layer: they split weights, heads and KV, and add up their parts twice a "
        "layer (all-reduce). Divides the model's heads.",
    )
    pipeline: PositiveInt = Field(
        1,
        le=MOST_DEVICES,
        description="Stages that hold a part of the layers each and hand a batch on. Divides the model's layers.",
    )
    micro_batches: PositiveInt | None = Field(
        None,
        le=4096,
        description="Pipeline: equal parts that a step is cut into, so that stages work at once; each part reads the "
        "weights again. Absent: as many as end the step soonest.",
    )
    data: PositiveInt = Field(
        1,
        le=MOST_DEVICES,
        description="Attention replicas of a model with experts, each with requests of its own: steps are taken in "
        "lock-step, so the least loaded waits for the most loaded.",
    )
    expert: PositiveInt = Field(
        1,
        le=MOST_DEVICES,
        description="Parts that each layer's experts are spread over; tokens go there and back (all-to-all). Divides "
        "the experts and tensor x data, and is a multiple of data.",
    )
    expert_skew: float = Field(
        0.0,
        ge=0,
        le=4,
        description="How unevenly tokens choose experts: the n-th most popular is chosen in proportion to n to the "
        "power of minus this. 0: all alike.",
    )
    capacity_factor: PositiveFloat | None = Field(
        None,
        le=1024,
        description="Most tokens that an expert takes in a step, as a multiple of an even share; what is over is "
        "dropped, which costs quality. Absent: none is.",
    )
    router_seed: Seed = Field(0, description="Which experts are popular, and who chooses which in each step.")
    link_gb_per_s: PositiveFloat | None = Field(
        None, description="Bandwidth of a device to the others of its instance; absent: as its maker says."
    )
    link_latency_us: float = Field(10.0, ge=0, description="What a collective takes beside its bytes.")
    stage_gb_per_s: PositiveFloat | None = Field(
        None, description="Pipeline: bandwidth from one stage to the next; absent: as link_gb_per_s."
    )

    @property
    def devices(self) -> int:
        """Devices of the instance."""
        return self.tensor * self.pipeline * self.data


class ExpertTime(Spec):
    """Routed experts of a model, all its layers together: ``used`` of ``count`` for each token, in ``groups`` places.

    A place that ``n`` choices fall to, on ``m`` of its experts, works for the larger of ``n * token_ns`` and
    ``m * touch_ns`` (reading their weights); bringing them there and back takes ``dispatch_ns + n *
    dispatch_token_ns`` for the busiest place.
    """

    count: PositiveInt
    used: PositiveInt
    groups: PositiveInt
    token_ns: float = Field(ge=0)
    touch_ns: float = Field(ge=0)
    dispatch_ns: float = Field(ge=0)
    dispatch_token_ns: float = Field(ge=0)
    skew: float = Field(ge=0)
    capacity_factor: float | None
    seed: Seed


class ParallelTime(Spec):
    """What a profile's steps take beside the computing of its ``cost``, and how that is cut up.

    ``cost`` is that of one pass of a step through all layers, on ``tensor`` devices. The pass has ``collectives``
    collectives, which take ``collective_ns + collective_token_ns * tokens`` together; handing a part of a step to the
    next stage takes ``stage_ns + stage_token_ns * tokens``.
    """

    tensor: PositiveInt
    pipeline: PositiveInt
    data: PositiveInt
    expert: PositiveInt
    micro_batches: PositiveInt | None
    collectives: int = Field(ge=0)
    collective_ns: float = Field(ge=0)
    collective_token_ns: float = Field(ge=0)
    stage_ns: float = Field(ge=0)
    stage_token_ns: float = Field(ge=0)
    experts: ExpertTime | None

    @property
    def devices(self) -> int:
        """Devices of an instance."""
        return self.tensor * self.pipeline * self.data

    @property
    def affine(self) -> bool:
        """Whether a step's time is still that of `spec.target.Affine`: collectives add to its factors."""
        return self.pipeline == self.data == 1 and self.experts is None

    def scaled(self, factor: float) -> "ParallelTime":
        """The same with everything ``factor`` times as long."""
        times = {name: value * factor for name, value in self if name.endswith("_ns")}
        experts = self.experts
        if experts is not None:
            longer = {name: value * factor for name, value in experts if name.endswith("_ns")}
            experts = experts.model_copy(update=longer)
        return self.model_copy(update={**times, "experts": experts})
