"""Several tokens that came at one time, and the gaps that they count as."""

from collections.abc import Sequence

from scheduler_core.types.time import Ns


def even_gaps(wait_ns: Ns, tokens: int) -> Sequence[Ns]:
    """A wait that ended with ``tokens`` tokens, evenly over them; the gaps add up to it to the nanosecond."""
    if tokens == 1:
        return (wait_ns,)
    even, rest = divmod(wait_ns, tokens)
    return [even + (place < rest) for place in range(tokens)]
