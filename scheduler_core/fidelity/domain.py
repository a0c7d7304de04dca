"""Whether a step lies where its profile was measured."""

from scheduler_core.spec.target import Profile
from scheduler_core.types.shape import StepShape


class Domain:
    """Counts steps, and those beyond the measured domain of a profile; a profile without one claims nothing.

    ``profiles`` are by instance; of one that has none the last one counts.
    """

    def __init__(self, *profiles: Profile) -> None:
        self._most = [profile.domain for profile in profiles]
        self._steps = 0
        self._outside = 0
        self.extrapolated: dict[str, float] = {}

    def take(self, shape: StepShape, instance: int = 0) -> None:
        """Count one step of an instance."""
        self._steps += 1
        domain = self._most[min(instance, len(self._most) - 1)]
        beyond = {name: value for name, most in domain.items() if (value := getattr(shape, name)) > most}
        self._outside += bool(beyond)
        for name, value in beyond.items():
            self.extrapolated[name] = max(value, self.extrapolated.get(name, 0))

    @property
    def share(self) -> float:
        """Steps outside, of all steps."""
        return self._outside / self._steps if self._steps else 0.0
