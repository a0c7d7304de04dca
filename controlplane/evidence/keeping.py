"""What takes long to read out of stored evidence, kept in the cache: evidence of one digest always says the same."""

import json
import logging
from collections.abc import Callable
from typing import Any

from django.core.cache import cache

logger = logging.getLogger(__name__)

KEPT_S = 24 * 3600
LONGEST = 2**20  # characters of JSON; the cache's server evicts nothing, so what is longer is computed each time


def kept(key: str, compute: Callable[[], Any]) -> Any:
    """JSON data that ``compute`` gives, computed once a day at most while the cache can be reached.

    ``key`` has to name the evidence by its digest. What ``compute`` raises is not kept.
    """
    try:
        found = cache.get(key)
    except Exception:
        logger.warning("kept evidence: the cache cannot be reached", exc_info=True)
        return compute()
    if found is None:
        found = json.dumps(compute())
        _keep(key, found)
    return json.loads(found)


def _keep(key: str, text: str) -> None:
    if len(text) > LONGEST:
        return
    try:
        cache.set(key, text, KEPT_S)
    except Exception:
        logger.warning("kept evidence: the cache cannot be reached", exc_info=True)
