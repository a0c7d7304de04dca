"""Which drafts the target model accepts, on a simulated clock."""

from scheduler_core.spec.speculative import Speculative
from scheduler_core.types.noise import uniform


class Drafts:
    """Draws by (seed of the request, position of the token): the same whoever shares the step, and however often asked.

    Given that all tokens before it were accepted, the n-th token of a draft is accepted with the chance
    ``reached(n) / reached(n - 1)`` of `scheduler_core.spec.speculative.Speculative`.
    """

    __slots__ = ("_chances",)

    def __init__(self, worth: Speculative) -> None:
        before, chances = 1.0, []
        for reached in worth.reached():
            chances.append(reached / before if before else 0.0)
            before = reached
        self._chances = chances

    def accepted(self, seed: int, emitted: int, drafted: int, left: int) -> int:
        """Of ``drafted`` tokens, drafted after ``emitted`` ones, those accepted; ``left`` the answer still has.

        The step yields one token more, so that at most ``left - 1`` are.
        """
        most = min(drafted, left - 1)
        for place, chance in enumerate(self._chances[:most]):
            if uniform(seed, "draft", emitted + place) >= chance:
                return place
        return max(0, min(most, len(self._chances)))
