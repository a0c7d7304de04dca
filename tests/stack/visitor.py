"""A person at a running stack without a browser: signed in by the one-time link, with forms, a token and REST."""

import io
import json
import logging
import re
import time
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Self

import httpx

from headway.client import Client
from headway.config import Connection

logging.getLogger("httpx").setLevel(logging.WARNING)  # a line for each poll would bury what failed

ENDED = ("decided", "cancelled", "failed")
RUN_ENDED = ("succeeded", "failed", "cancelled", "lost")


class _Fields(HTMLParser):
    """What a browser would post of the form that posts to its own page, if nothing is changed; no upload fields."""

    def __init__(self) -> None:
        super().__init__()
        self.values: dict[str, str] = {}
        self._inside = False
        self._select: str | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        said = dict(attrs)
        name = said.get("name")
        if tag == "form":
            self._inside = said.get("method") == "post" and "action" not in said
        elif not self._inside:
            return
        elif tag == "input" and name and said.get("type") not in ("file", "checkbox", "radio"):
            self.values[name] = said.get("value") or ""
        elif tag == "input" and name and said.get("type") == "checkbox" and "checked" in said:
            self.values[name] = said.get("value") or "on"
        elif tag == "select":
            self._select = name
        elif tag == "option" and self._select and ("selected" in said or self._select not in self.values):
            self.values[self._select] = said.get("value") or ""

    def handle_endtag(self, tag: str) -> None:
        if tag == "form":
            self._inside = False
        elif tag == "select":
            self._select = None


class Visitor:
    """Pages by session and CSRF token, REST by an access token made on the account page."""

    def __init__(self, port: int, sign_in_path: str) -> None:
        base = f"http://127.0.0.1:{port}"
        self.pages = httpx.Client(base_url=base, timeout=60, headers={"Origin": base})
        assert self.submit(sign_in_path).headers["Location"] == "/"
        made = self.submit("/account/", name="tests", days="1")
        token = re.search(r"hw_[\w.-]+", made.text)
        assert token, made.text
        self.token = token[0]
        self.rest = Client(Connection(base, self.token))

    @classmethod
    def of(cls, port: int, said: str) -> Self:
        """Signed in by the link in what a supervisor ``said``."""
        found = re.search(r"http://127\.0\.0\.1:\d+(/sign-in/\S+)", said)
        assert found, said
        return cls(port, found[1])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.pages.close()
        self.rest.close()

    def submit(self, path: str, *, file: tuple[str, bytes] | None = None, **changes: str) -> httpx.Response:
        """Open the page at ``path``, change its form's fields and post it."""
        page = self.pages.get(path)
        assert page.status_code == 200, page.text
        form = _Fields()
        form.feed(page.text)
        files = {"file": (file[0], io.BytesIO(file[1]))} if file else None
        return self.pages.post(path, data={**form.values, **changes}, files=files)

    def import_by_form(self, name: str, content: bytes, declared: dict[str, Any]) -> str:
        """Import a trace on its page; the dataset's id."""
        options = dict(declared)
        fields = {f"columns.{column}": str(header) for column, header in options.pop("columns", {}).items()}
        if fields:
            fields["columns.__on"] = "on"
        answer = self.submit("/traces/new/", file=(f"{name}.trace", content), name=name, **options, **fields)
        assert answer.status_code == 302, answer.text
        detail = self.pages.get(answer.headers["Location"])
        assert name in detail.text
        return answer.headers["Location"].strip("/").rpartition("/")[2]

    def import_by_rest(self, name: str, content: bytes, declared: dict[str, Any], folder: Path) -> dict[str, Any]:
        """Import a trace by REST; what the server answered."""
        path = folder / "upload.trace"
        path.write_bytes(content)
        fields = {key: json.dumps(value) if key == "columns" else str(value) for key, value in declared.items()}
        answer: dict[str, Any] = self.rest.upload("/datasets", path, {"name": name, **fields})
        return answer

    def run(self, run_id: str) -> dict[str, Any]:
        """A run in full."""
        answer: dict[str, Any] = self.rest.get(f"/runs/{run_id}")
        return answer

    def wait_run(self, run_id: str, *states: str, within_s: float, attempt: int = 1) -> dict[str, Any]:
        """The run when it is in one of ``states``."""
        deadline = time.monotonic() + within_s
        while True:
            found = self.run(run_id)
            if found["state"] in states and found["attempt"] >= attempt:
                return found
            if time.monotonic() > deadline:
                raise AssertionError(f"not {states} within {within_s} s: {found['state']} {found['transitions']}")
            time.sleep(0.2)

    def wait_experiment(self, experiment_id: str, *, within_s: float) -> dict[str, Any]:
        """The experiment when it has ended."""
        deadline = time.monotonic() + within_s
        while True:
            found: dict[str, Any] = self.rest.get(f"/experiments/{experiment_id}")
            if found["status"] in ENDED:
                return found
            assert time.monotonic() < deadline, [(run["title"], run["state"]) for run in found["runs"]]
            time.sleep(0.3)

    def artifact(self, run: dict[str, Any], name: str, folder: Path) -> Path:
        """A file of the run's current attempt, downloaded into ``folder``."""
        (row,) = (row for row in run["artifacts"] if row["name"] == name and row["attempt"] == run["attempt"])
        path = folder / f"{run['id']}-{name}"
        with path.open("wb") as sink:
            self.rest.download(row["url"], sink)
        assert path.stat().st_size == row["bytes"]
        return path
