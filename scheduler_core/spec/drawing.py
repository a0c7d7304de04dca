"""What to draw from fitted clients."""

from pydantic import Field

from scheduler_core.spec.base import PositiveInt, Spec


class Drawing(Spec):
    """A part of the clients' own time, and how it is drawn; the same seed draws the same requests everywhere."""

    from_s: int = Field(0, ge=0, description="Second of the clients' time to begin at.")
    for_s: PositiveInt = Field(3600, description="Seconds to draw.")
    rate_scale: float = Field(1.0, gt=0, le=1e6, description="Multiply every rate by this.")
    draw_seed: int = Field(0, ge=0, description="The same seed draws the same requests everywhere.")
