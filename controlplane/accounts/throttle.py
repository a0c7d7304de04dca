"""Slowing down password guessing: a few failures per name and address, more per address, then a wait.

Counts live in the cache. While the cache cannot be reached nobody is locked out; that it happened is logged.
"""

import hashlib
import logging

from django.core.cache import cache

logger = logging.getLogger(__name__)

WINDOW_S = 900
PER_NAME_AND_ADDRESS = 5
PER_ADDRESS = 50


def _keys(username: str, address: str) -> dict[str, int]:
    """Cache keys with their limits; hashed, because names are free text and cache keys are not."""
    both = hashlib.sha256(f"{username.casefold()}|{address}".encode()).hexdigest()
    alone = hashlib.sha256(address.encode()).hexdigest()
    return {f"sign-in:both:{both}": PER_NAME_AND_ADDRESS, f"sign-in:address:{alone}": PER_ADDRESS}


def is_blocked(username: str, address: str) -> bool:
    """Whether so many recent attempts failed that this one may not even be tried."""
    keys = _keys(username, address)
    try:
        counts = cache.get_many(list(keys))
    except Exception:
        logger.warning("sign-in throttle: the cache cannot be reached", exc_info=True)
        return False
    return any(counts.get(key, 0) >= limit for key, limit in keys.items())


def note_failure(username: str, address: str) -> None:
    """Count one failed attempt; counts end `WINDOW_S` after the first."""
    try:
        for key in _keys(username, address):
            cache.add(key, 0, WINDOW_S)
            cache.incr(key)
    except ValueError:  # the count expired between the two calls
        return
    except Exception:
        logger.warning("sign-in throttle: the cache cannot be reached", exc_info=True)


def forget_failures(username: str, address: str) -> None:
    """Start anew for a name and address after a success; the address alone keeps its count."""
    both = next(iter(_keys(username, address)))
    try:
        cache.delete(both)
    except Exception:
        logger.warning("sign-in throttle: the cache cannot be reached", exc_info=True)
