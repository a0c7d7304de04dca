"""Settings of the test suite: a scratch home of its own, SQLite or the database of ``DATABASE_URL``, no real Redis."""

import atexit
import os
import shutil
import tempfile

os.environ.setdefault("HEADWAY_DEBUG", "1")
# Tests put parts of the core in place of others, which machine code does not allow where somebody has made some. Here,
# as these settings are read, and import the core, before any conftest is.
os.environ.setdefault("HEADWAY_PURE", "1")
os.environ["HEADWAY_HOME"] = tempfile.mkdtemp(prefix="headway-test-")
atexit.register(shutil.rmtree, os.environ["HEADWAY_HOME"], ignore_errors=True)

from controlplane.settings import *

PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
STATIC_ROOT.mkdir(parents=True, exist_ok=True)  # WhiteNoise warns of a missing one
CHANNEL_LAYERS = {"default": {"BACKEND": "channels.layers.InMemoryChannelLayer"}}
CACHES = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}

if DATABASES["default"]["ENGINE"].endswith("sqlite3"):
    DATABASES["default"]["TEST"] = {"NAME": HOME / "test.sqlite3"}  # a file, so that other processes see it too

STATIC_ROOT.mkdir(exist_ok=True)  # or WhiteNoise warns at every request
