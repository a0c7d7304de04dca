"""Messages between the page and the server, close codes and limits; docs/live-protocol.md tells the whole story.

Client to server::

    {"type": "subscribe", "run": ID, "attempt": N or null, "after": SEQ}    {"type": "unsubscribe", "run": ID}
    {"type": "subscribe", "experiment": ID}                                 {"type": "unsubscribe", "experiment": ID}
    {"type": "ping"}

Server to client: ``run`` (state and samples after what the client has), ``experiment``, ``beat``, ``pong``, ``error``.
"""

from enum import IntEnum
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, model_validator

Id = Annotated[str, Field(pattern=r"^[a-z]{3}_[a-z0-9]{4,20}$")]


class Close(IntEnum):
    """Why the server closed. The client stops for good on SIGNED_OUT and FORBIDDEN, else it resumes."""

    BAD_MESSAGE = 4400
    SIGNED_OUT = 4401
    FORBIDDEN = 4403
    TOO_SLOW = 4408
    TOO_MANY = 4429
    TRY_AGAIN = 4503


# Limits of one socket. Real pages use one or two subscriptions and a ping every 20 s.
MAX_MESSAGE_BYTES = 4096
MAX_MESSAGES = 40
MESSAGES_WINDOW_S = 10.0
MAX_SUBSCRIPTIONS = 32
MAX_SOCKETS_PER_USER = 24  # in one server process

BATCH_SAMPLES = 500  # most samples in one message
SEND_TIMEOUT_S = 10.0  # a viewer that takes longer for one message is told to come back
PAUSE_S = 0.1  # least time between two messages of a socket's subscriptions: ticks in between become one batch
REFRESH_S = 5.0  # a lost tick is made good after this at the latest
BEAT_S = 15.0
RECHECK_S = 45.0  # session and permission are looked at again this often
REJOIN_S = 600.0  # far inside the channel layer's group expiry


class _Inbound(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Subscribe(_Inbound):
    """Follow an experiment, or a run from after ``after`` of ``attempt`` (absent: the current one, from the start)."""

    type: Literal["subscribe"]
    run: Id | None = None
    experiment: Id | None = None
    attempt: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    after: Annotated[int, Field(ge=0, lt=2**31)] = 0

    @model_validator(mode="after")
    def _one_topic(self) -> Self:
        if (self.run is None) == (self.experiment is None):
            raise ValueError("name either a run or an experiment")
        return self


class Unsubscribe(_Inbound):
    """Stop following."""

    type: Literal["unsubscribe"]
    run: Id | None = None
    experiment: Id | None = None


class Ping(_Inbound):
    """Is anybody there? Answered with ``pong``."""

    type: Literal["ping"]


Inbound = Annotated[Subscribe | Unsubscribe | Ping, Field(discriminator="type")]
INBOUND: TypeAdapter[Inbound] = TypeAdapter(Inbound)
