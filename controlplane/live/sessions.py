"""Is a socket's session still good? Channels resolves the user once at connect; signing out must close the socket."""

from importlib import import_module
from typing import Any

from django.conf import settings
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
from django.utils.crypto import constant_time_compare

from controlplane.accounts.models import User


def live_user(session_key: str | None) -> User | None:
    """The active user that a session belongs to now; None when it ended, expired, or the password changed."""
    if not session_key:
        return None
    store: Any = import_module(settings.SESSION_ENGINE).SessionStore(session_key)
    data = store.load()
    if BACKEND_SESSION_KEY not in data or SESSION_KEY not in data:
        return None
    user = User.objects.filter(pk=data[SESSION_KEY], is_active=True).first()
    if user is None or not constant_time_compare(data.get(HASH_SESSION_KEY, ""), user.get_session_auth_hash()):
        return None
    return user
