"""Settings of the control plane; every deployment choice is an environment variable.

Embedded by default: SQLite, a local Valkey started by the supervisor, files under ``HEADWAY_HOME``. With
``DATABASE_URL`` and ``REDIS_URL`` set the same code is a team deployment.
"""

import shlex
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from django.core.exceptions import ImproperlyConfigured

from controlplane import env
from controlplane.ui.content_policy import POLICY

ROOT = Path(__file__).resolve().parent.parent
HOME = Path(env.text("HEADWAY_HOME", "") or ROOT / ".headway").expanduser().resolve()
SCRATCH = Path(env.text("HEADWAY_SCRATCH", str(HOME / "scratch")))

DEBUG = env.flag("HEADWAY_DEBUG", default=False)


def _secret_key() -> str:
    """From the environment, or kept in the home folder by the embedded stack; there is no built-in default."""
    kept = HOME / "secret_key"
    if kept.is_file():
        return env.text("SECRET_KEY", kept.read_text().strip())
    if DEBUG:
        return env.text("SECRET_KEY", "for-development-only-" + "0" * 40)
    try:
        return env.text("SECRET_KEY")
    except ImproperlyConfigured as error:
        raise ImproperlyConfigured(
            f"no Headway was started in {HOME} yet: `make up` first, or name its home by HEADWAY_HOME; "
            f"a team deployment: {error}"
        ) from None


SECRET_KEY = _secret_key()
ALLOWED_HOSTS = env.words("HEADWAY_HOSTS", "127.0.0.1,localhost")
if "*" in ALLOWED_HOSTS:
    raise ImproperlyConfigured("HEADWAY_HOSTS: '*' would switch off the WebSocket origin check; name the hosts")
ORIGINS = env.words("HEADWAY_ORIGINS")
CSRF_TRUSTED_ORIGINS = ORIGINS

INSTALLED_APPS = [
    "unfold",
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "whitenoise.runserver_nostatic",
    "django.contrib.staticfiles",
    "channels",
    "csp",
    "rest_framework",
    "django_filters",
    "drf_spectacular",
    "controlplane.accounts",
    "controlplane.workloads",
    "controlplane.policies",
    "controlplane.runs",
    "controlplane.evidence",
    "controlplane.fleet",
    "controlplane.endpoints",
    "controlplane.experiments",
    "controlplane.studies",
    "controlplane.live",
    "controlplane.api",
    "controlplane.ui",
    "controlplane.dispatch",
    "controlplane.embedded",
]

MIDDLEWARE = [
    "controlplane.api.middleware.RequestIds",
    "controlplane.api.middleware.ApiErrors",
    "django.middleware.security.SecurityMiddleware",
    "controlplane.ui.security.PagePolicy",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]

ROOT_URLCONF = "controlplane.urls"
ASGI_APPLICATION = "controlplane.asgi.application"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [ROOT / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "controlplane.ui.shell.shell",
            ]
        },
    }
]


def _database(url: str) -> dict[str, Any]:
    """Django's form of a ``sqlite:///path`` or ``postgres://user:password@host:port/name`` URL."""
    parts = urlsplit(url)
    if parts.scheme == "sqlite":
        return {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": parts.path[1:] or ":memory:",
            # IMMEDIATE: a read-then-write transaction in the default mode fails at once beside other writers.
            "OPTIONS": {
                "transaction_mode": "IMMEDIATE",
                "timeout": 30,
                "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; "
                "PRAGMA journal_size_limit=67108864",
            },
        }
    if parts.scheme in ("postgres", "postgresql"):
        return {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": parts.path[1:],
            "USER": unquote(parts.username or ""),
            "PASSWORD": unquote(parts.password or ""),
            "HOST": parts.hostname or "",
            "PORT": str(parts.port or ""),
            "CONN_HEALTH_CHECKS": True,
        }
    raise ImproperlyConfigured(f"DATABASE_URL: {parts.scheme!r} is neither sqlite nor postgres")


DATABASES = {"default": _database(env.text("DATABASE_URL", f"sqlite:///{HOME / 'headway.sqlite3'}"))}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

# One server, three logical databases, so that a full cache or channel layer cannot evict queue keys.
REDIS_URL = env.text("REDIS_URL", "redis://127.0.0.1:6379").rstrip("/")
# Model servers: hosts and networks that requests may go to (none listed: any but this installation's own and cloud
# metadata services), and the file of launch templates that an administrator keeps on each worker's machine.
ENDPOINT_HOSTS = env.words("HEADWAY_ENDPOINT_HOSTS")
LAUNCH_FILE = env.text("HEADWAY_LAUNCH_FILE", str(HOME / "launch.yaml"))
WEB_PORT = int(env.number("HEADWAY_WEB_PORT", 8000))
CHANNEL_LAYERS: dict[str, Any] = {
    "default": {
        "BACKEND": "channels_redis.core.RedisChannelLayer",
        # The layer waits 5 s at a time for messages; the client's own limit on reading, 5 s too, would end each wait
        # with an error and close every quiet socket.
        "CONFIG": {
            "hosts": [{"address": f"{REDIS_URL}/1", "socket_timeout": 30, "socket_connect_timeout": 5}],
            "prefix": "headway",
            "group_expiry": 86_400,
        },
    }
}
CACHES: dict[str, Any] = {
    "default": {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": f"{REDIS_URL}/2"}
}

CELERY_BROKER_URL = f"{REDIS_URL}/0"
CELERY_TASK_IGNORE_RESULT = True  # the run row is the result
CELERY_TASK_SERIALIZER = "json"
CELERY_RESULT_SERIALIZER = "json"
CELERY_ACCEPT_CONTENT = ["json"]
CELERY_TASK_ACKS_LATE = False
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_WORKER_DISABLE_PREFETCH = True
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_BROKER_CONNECTION_MAX_RETRIES = None
CELERY_BROKER_TRANSPORT_OPTIONS = {"socket_connect_timeout": 5, "health_check_interval": 25}
CELERY_WORKER_CANCEL_LONG_RUNNING_TASKS_ON_CONNECTION_LOSS = False  # the lease decides, not the broker
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
CELERY_TASK_DEFAULT_QUEUE = "headway.cpu"

# Run lifecycle; see docs/run-lifecycle.md. A worker renews its lease every heartbeat and gives up after two failures.
RUN_HEARTBEAT = timedelta(seconds=env.number("HEADWAY_HEARTBEAT_S", 2))
RUN_LEASE = timedelta(seconds=env.number("HEADWAY_LEASE_S", 10))
RUN_REAP_EVERY = timedelta(seconds=env.number("HEADWAY_REAP_S", 1))
RUN_REDISPATCH_AFTER = timedelta(seconds=env.number("HEADWAY_REDISPATCH_S", 10))
RUN_STOP_GRACE = timedelta(seconds=env.number("HEADWAY_STOP_GRACE_S", 5))
RUN_COMMAND = shlex.split(env.text("HEADWAY_RUN_COMMAND", f"{shlex.quote(sys.executable)} -m gpu_runner.run"))
RUN_CALIBRATE_COMMAND = shlex.split(
    env.text("HEADWAY_CALIBRATE_COMMAND", f"{shlex.quote(sys.executable)} -m gpu_runner.calibrate")
)
RUN_SEARCH_COMMAND = shlex.split(
    env.text("HEADWAY_SEARCH_COMMAND", f"{shlex.quote(sys.executable)} -m gpu_runner.search")
)
DEVICE_KIND = env.text("HEADWAY_DEVICE_KIND", "cpu")  # what a worker started with these settings drives
DEVICE_INDEX = int(env.number("HEADWAY_DEVICE_INDEX", 0))
RUN_DISPATCH_AHEAD = int(env.number("HEADWAY_DISPATCH_AHEAD", 2))  # unclaimed messages out per device kind
RUN_QUEUE_LIMIT = int(env.number("HEADWAY_QUEUE_LIMIT", 500))  # waiting runs per person
RUN_EVIDENCE_MAX_BYTES = int(env.number("HEADWAY_EVIDENCE_MAX_MB", 2048)) * 1024 * 1024  # per attempt
RUN_SAMPLES_MAX = int(env.number("HEADWAY_SAMPLES_MAX", 200_000))  # live samples kept per attempt
WORKER_DEAD_AFTER = timedelta(seconds=env.number("HEADWAY_WORKER_DEAD_S", 20))

AUTH_USER_MODEL = "accounts.User"
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 10}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
    {"NAME": "django.contrib.auth.password_validation.NumericPasswordValidator"},
]
LOGIN_URL = "login"
LOGIN_REDIRECT_URL = "home"
LOGOUT_REDIRECT_URL = "login"

LANGUAGE_CODE = "en"
TIME_ZONE = "UTC"
USE_I18N = False
USE_TZ = True

STATIC_URL = "static/"
STATIC_ROOT = HOME / "static"
MEDIA_ROOT = Path(env.text("HEADWAY_STORAGE", str(HOME / "storage")))
STORAGES: dict[str, Any] = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "whitenoise.storage.CompressedStaticFilesStorage"},
}
FILE_UPLOAD_HANDLERS = ["django.core.files.uploadhandler.TemporaryFileUploadHandler"]
DATA_UPLOAD_MAX_MEMORY_SIZE = 2 * 1024 * 1024
QUICK_PROBE_S = env.number("HEADWAY_QUICK_PROBE_S", 60)
TRACE_UPLOAD_MAX_BYTES = int(env.number("HEADWAY_TRACE_MAX_MB", 512)) * 1024 * 1024
UPLOAD_FORM_BYTES = 64 * 1024  # what a form adds around an uploaded file

HTTPS = env.flag("HEADWAY_HTTPS", default=False)
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"
CSRF_COOKIE_SAMESITE = "Lax"
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = SECURE_SSL_REDIRECT = HTTPS
SECURE_HSTS_SECONDS = 31_536_000 if HTTPS else 0
SECURE_HSTS_INCLUDE_SUBDOMAINS = SECURE_HSTS_PRELOAD = HTTPS
SECURE_REFERRER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"
CONTENT_SECURITY_POLICY = POLICY
# Class names of the notices that show messages: debug, info, success, warning, error.
MESSAGE_TAGS = {10: "info", 20: "info", 25: "good", 30: "warn", 40: "bad"}

REST_FRAMEWORK: dict[str, Any] = {
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "controlplane.api.authentication.TokenAuthentication",
        "rest_framework.authentication.SessionAuthentication",
    ],
    "DEFAULT_PERMISSION_CLASSES": [
        "controlplane.api.permissions.SignedIn",
        "controlplane.api.permissions.TokenMayWrite",
    ],
    "DEFAULT_THROTTLE_CLASSES": [
        "controlplane.api.throttling.ReadLimit",
        "controlplane.api.throttling.ChangeLimit",
    ],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["controlplane.api.parsers.BoundedJSONParser"],
    "DEFAULT_PAGINATION_CLASS": "controlplane.api.pagination.Keyset",
    "EXCEPTION_HANDLER": "controlplane.api.problems.exception_handler",
    "NUM_PROXIES": 0,
    "URL_FORMAT_OVERRIDE": None,
}
API_RATES = {
    "all": env.text("HEADWAY_API_RATE", "1200/min"),
    "change": env.text("HEADWAY_API_CHANGE_RATE", "240/min"),
}
SPECTACULAR_SETTINGS: dict[str, Any] = {
    "TITLE": "Headway",
    "DESCRIPTION": "Decide how to schedule LLM serving, with evidence.",
    "VERSION": "1",
    "OAS_VERSION": "3.1.0",
    "SERVE_INCLUDE_SCHEMA": False,
    "SERVE_PERMISSIONS": REST_FRAMEWORK["DEFAULT_PERMISSION_CLASSES"],
    "SCHEMA_PATH_PREFIX": "/api/v1",
    "POSTPROCESSING_HOOKS": [
        "controlplane.api.schema.describe_errors",
        "controlplane.api.schema.drop_column_limits",
    ],
    "ENUM_GENERATE_CHOICE_DESCRIPTION": False,
}

LOGGING: dict[str, Any] = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "%(asctime)s %(levelname)s %(name)s %(message)s"}},
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "line"}},
    "root": {"handlers": ["console"], "level": env.text("HEADWAY_LOG_LEVEL", "INFO")},
}
