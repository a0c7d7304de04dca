"""What a request is called at the server, in its x-request-id.

The name is a UUID (RFC 9562, version 4 in form): servers behind Starlette's request-id plugin, such as
llama-cpp-python's, answer any other name with an empty 400.
"""

import hashlib
import uuid


class Namer:
    """Names for the requests of one run: the run's digest, then the request's index in the last group."""

    def __init__(self, run: str) -> None:
        digest = hashlib.blake2b(run.encode(), digest_size=9).hexdigest()
        self._run = f"{digest[:8]}-{digest[8:12]}-4{digest[12:15]}-8{digest[15:]}-"

    def name(self, index: int) -> str:
        """The name of the request at ``index``."""
        return f"{self._run}{index:012x}"


def index_of(name: str) -> int | None:
    """The index in a name that a `Namer` made; None where ``name`` is no UUID."""
    try:
        return uuid.UUID(name).int & 0xFFFF_FFFF_FFFF
    except ValueError:
        return None
