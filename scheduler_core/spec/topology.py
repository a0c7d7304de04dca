"""What a modelled cluster consists of: groups of equal instances and the link between them."""

from collections.abc import Callable, Mapping
from typing import TypeVar

from pydantic import Field, field_validator

from scheduler_core.spec.base import Name, PositiveFloat, PositiveInt, Share, Spec
from scheduler_core.spec.parallel import Parallel

MOST_INSTANCES = 4096

ProfileT = TypeVar("ProfileT")
ChooseProfile = Callable[[str, str, Parallel | None], ProfileT]
"""Finds a profile by name for the field at a path, spread over devices as a section beside that field says."""


class InstanceGroup(Spec):
    """Equal instances of one device and model."""

    count: PositiveInt = Field(1, le=MOST_INSTANCES, description="How many instances.")
    profile: str = Field("", max_length=64, description="Profile of their device and model; empty: the target's own.")
    kv_blocks: PositiveInt | None = Field(None, description="KV blocks of each; absent: as many as the target says.")
    parallel: Parallel | None = Field(
        None, description="Each of them over several devices; absent: as the profile's name says, one if it says none."
    )
    price_per_device_hour: PositiveFloat | None = Field(
        None, description="Price of one of their devices for an hour; absent: the target's."
    )


class ColdStart(Spec):
    """What passes before a started instance serves, stage after stage."""

    place_s: float = Field(2.0, ge=0, description="Finding a machine.")
    image_s: float = Field(10.0, ge=0, description="Pulling and starting the container.")
    weights_s: float = Field(20.0, ge=0, description="Loading the weights.")
    graphs_s: float = Field(8.0, ge=0, description="Capturing graphs and warming up.")

    @property
    def stages_s(self) -> dict[str, float]:
        """How long each stage takes, in order."""
        return {"place": self.place_s, "image": self.image_s, "weights": self.weights_s, "graphs": self.graphs_s}

    @property
    def total_s(self) -> float:
        """All stages."""
        return sum(self.stages_s.values())


class Topology(Spec):
    """Instances by group, numbered in order of the groups' names, however they were written or stored.

    Routing and the use of each group are the policy's (its section ``pools``).
    """

    groups: dict[Name, InstanceGroup] = Field(
        min_length=1, max_length=64, description="Groups of equal instances by name."
    )
    link_gb_per_s: PositiveFloat = Field(
        12.5, description="Bandwidth between two instances in 10^9 bytes per second; 12.5 is 100 Gb/s."
    )
    link_latency_us: float = Field(10.0, ge=0, description="Time before the first byte of a transfer arrives.")
    link_shared: bool = Field(
        True, description="Whether transfers under way at once share the bandwidth, or each pair has its own."
    )

    @field_validator("groups")
    @classmethod
    def _by_name(cls, groups: dict[str, InstanceGroup]) -> dict[str, InstanceGroup]:
        return dict(sorted(groups.items()))

    def profiles(self, choose: ChooseProfile[ProfileT], usual: str) -> dict[str, ProfileT]:
        """By group, what is found for those that have a profile or devices of their own; ``usual`` is the target's."""
        return {
            group: choose(
                described.profile or usual, f"target.modelled.topology.groups.{group}.profile", described.parallel
            )
            for group, described in self.groups.items()
            if described.profile or described.parallel is not None
        }

    kv_bytes_per_token: PositiveInt = Field(
        131_072, description="Bytes of KV that a token takes; 131072 is Llama 3 8B in 16 bits."
    )
    kv_layers: PositiveInt = Field(
        32,
        le=1024,
        description="Layers of the model, each with an equal part of a token's KV; pools.move layers sends one when it "
        "is computed. 32 is Llama 3 8B.",
    )
    cold_start: ColdStart = Field(ColdStart(), description="How long an instance takes to start, where any is started.")
    broken_share: Share = Field(0.0, description="Share of transfers that break off when their bytes have moved.")
    late_share: Share = Field(0.0, description="Share of transfers that are reported late.")
    late_ms: float = Field(0.0, ge=0, description="How late those are reported.")

    def holding(self, hold: Mapping[str, int] | None) -> "Topology":
        """What a policy uses of it: at most ``hold`` instances of each group that it names, all of the others."""
        wanted = hold or {}
        groups = {
            name: group.model_copy(update={"count": min(group.count, wanted.get(name, group.count))})
            for name, group in self.groups.items()
        }
        return self.model_copy(update={"groups": {name: group for name, group in groups.items() if group.count}})

    @property
    def instances(self) -> int:
        """Instances of all groups."""
        return sum(group.count for group in self.groups.values())
