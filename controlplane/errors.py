"""Refusals that services raise besides `InputError` and Django's ``PermissionDenied``; their text is fit for users."""

from scheduler_core.types.errors import HeadwayError


class ConflictError(HeadwayError):
    """The request is well formed, but the object is not in a state that allows it (such as: already finished)."""


class QuotaError(HeadwayError):
    """A person's or the installation's limit would be exceeded; the text names the limit and the way out."""


class FencedError(HeadwayError):
    """A write came from an attempt that is no longer the current, leased one."""


class BrokerDownError(HeadwayError):
    """The message broker cannot be reached at all."""
