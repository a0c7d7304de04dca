"""The REST client: one method per verb, retries that are safe, refusals as exceptions with the server's own words."""

import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self
from urllib.parse import urlsplit

import httpx

from headway.config import Connection
from scheduler_core.types.errors import HeadwayError, Problem

API = "/api/v1"
RETRIES = 4
_RETRY_STATUSES = (429, 502, 503, 504)
_READ_LIMIT_S = 120.0


class RefusedError(HeadwayError):
    """The server said no: ``status`` and ``code`` for programs, text and ``problems`` for people."""

    def __init__(self, status: int, document: Mapping[str, Any]) -> None:
        self.status = status
        self.code = str(document.get("code", ""))
        self.request_id = str(document.get("request_id", ""))
        self.problems = [Problem(str(item["where"]), str(item["message"])) for item in document.get("problems", [])]
        text = str(document.get("detail") or f"the server answered {status}")
        lines = [str(problem) for problem in self.problems] if len(self.problems) > 1 else [text]
        super().__init__("\n".join(lines))


class UnreachableError(HeadwayError):
    """No answer from the server, several times."""


class Client:
    """A connection to one server. Usable as a context manager."""

    def __init__(self, connection: Connection, *, transport: httpx.BaseTransport | None = None) -> None:
        self.connection = connection
        headers = {"Accept": "application/json"}
        if connection.token:
            headers["Authorization"] = f"Bearer {connection.token}"
        self._http = httpx.Client(
            base_url=connection.url + API,
            headers=headers,
            timeout=httpx.Timeout(_READ_LIMIT_S, connect=5.0),
            transport=transport,
            follow_redirects=False,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let the connection go."""
        self._http.close()

    def get(self, path: str, **params: Any) -> Any:
        """The answer to a read."""
        given = {name: value for name, value in params.items() if value is not None}
        return self._send("GET", path, params=given).json()

    def pages(self, path: str, *, at_most: int, **params: Any) -> Iterator[dict[str, Any]]:
        """Rows of a list, page by page, newest first."""
        answer = self.get(path, limit=min(at_most, 200), **params)
        given = 0
        while True:
            for row in answer["results"]:
                yield row
                given += 1
                if given == at_most:
                    return
            if not answer["next"]:
                return
            answer = self._send("GET", self._here(answer["next"])).json()

    def post(self, path: str, data: Any = None, *, key: str | None = None) -> Any:
        """The answer to a change sent as JSON; a fresh idempotency key makes its retries safe."""
        return self._send("POST", path, json={} if data is None else data, headers=_keyed(key)).json()

    def upload(self, path: str, file: Path, fields: Mapping[str, str], *, key: str | None = None) -> Any:
        """The answer to a change that sends a file."""
        headers = _keyed(key)
        with file.open("rb") as stream:
            return self._send(
                "POST", path, files={"file": (file.name, stream)}, data=dict(fields), headers=headers
            ).json()

    def download(self, url: str, sink: BinaryIO) -> None:
        """Stream a file into ``sink``."""
        with self._stream(url) as response:
            for chunk in response.iter_bytes():
                sink.write(chunk)

    @contextmanager
    def _stream(self, url: str) -> Iterator[httpx.Response]:
        try:
            with self._http.stream("GET", self._here(url)) as response:
                if response.status_code >= 400:
                    response.read()
                yield _checked(response)
        except httpx.TransportError as error:
            raise UnreachableError(self._no_answer(error)) from None

    def _send(self, verb: str, path: str, **options: Any) -> httpx.Response:
        """One request, tried again after a lost connection or a passing refusal."""
        for attempt in range(RETRIES + 1):
            last = attempt == RETRIES
            try:
                response = self._http.request(verb, path, **options)
            except httpx.TransportError as error:
                if last:
                    raise UnreachableError(self._no_answer(error)) from None
                wait = 0.25 * 2**attempt
            else:
                if last or not _may_pass(response):
                    return _checked(response)
                wait = _wait(response, 0.25 * 2**attempt)
            _rewind(options)
            time.sleep(wait)
        raise AssertionError("the last attempt returns or raises")

    def _here(self, url: str) -> str:
        """An address from an answer, on the server we talk to: the token goes nowhere else."""
        parts = urlsplit(url)
        return self.connection.url + parts.path + (f"?{parts.query}" if parts.query else "")

    def _no_answer(self, error: Exception) -> str:
        reason = str(error) or type(error).__name__
        return f"no answer from {self.connection.url} ({reason}); is it running, and is HEADWAY_URL right?"


def _keyed(key: str | None) -> dict[str, str]:
    return {"Idempotency-Key": key or secrets.token_urlsafe(24)}


def _rewind(options: Mapping[str, Any]) -> None:
    for _, stream in dict(options.get("files", {})).values():
        stream.seek(0)


def _may_pass(response: httpx.Response) -> bool:
    """Whether trying the same request again, unchanged, can succeed."""
    if response.status_code == 409:
        return bool(_document(response).get("code") == "in_flight")
    quota = response.status_code == 429 and _document(response).get("code") == "quota_exceeded"
    return response.status_code in _RETRY_STATUSES and not quota


def _wait(response: httpx.Response, otherwise: float) -> float:
    given = response.headers.get("Retry-After", "")
    return min(float(given), 30.0) if given.isdigit() else otherwise


def _checked(response: httpx.Response) -> httpx.Response:
    if response.status_code < 300:
        return response
    document = _document(response)
    if response.status_code == 404 and document.get("detail"):  # what is not there, which the server does not repeat
        document = {**document, "detail": f"{str(document['detail']).rstrip('.')}: {response.request.url.path}"}
    raise RefusedError(response.status_code, document)


def _document(response: httpx.Response) -> dict[str, Any]:
    try:
        data = response.json()
    except ValueError:
        data = None
    if isinstance(data, dict):
        return data
    server = response.headers.get("Server", "unknown")
    return {"detail": f"the server answered {response.status_code} and no Headway document (server: {server})"}
