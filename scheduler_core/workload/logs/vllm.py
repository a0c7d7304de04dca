"""vLLM's server log with ``--enable-log-requests`` as requests.

Token ids stand in lines of level DEBUG: those of the prompt beside the request, those of the answer, with
``--enable-log-outputs``, whole or chunk by chunk. The clock of a line counts seconds and has no year.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

from scheduler_core.types.time import NS_PER_S, Ns
from scheduler_core.workload.logs.hashing import token_blocks
from scheduler_core.workload.logs.lines import plain_lines
from scheduler_core.workload.logs.rows import BLOCK_SIZE, LoggedRequest, Row, UnusableRowError

_LINE = re.compile(r"[A-Z]+ (\d\d)-(\d\d) (\d\d):(\d\d):(\d\d) \[[^\]]*\] (.*)")
_RECEIVED = re.compile(r"Received request (\S+?): (.*)")
_DETAILS = re.compile(r"Request (\S+) details: (.*)")
_ANSWER = re.compile(r"Generated response (\S+?)( \(streaming (?:complete|delta)\))?(?: details)?: (.*)")
# Text of a prompt may hold the same words: the last of them on a line are the server's own.
_PROMPT_IDS = re.compile(r".*\bprompt_token_ids: \[([\d, ]*)\]")
_ANSWER_IDS = re.compile(r".*\boutput_token_ids: \[([\d, ]*)\]")
_FORCED = re.compile(r"(?=.*\bignore_eos=True\b).*\bmax_tokens=(\d+)")
_COMMON_YEAR = 2001  # neither it nor the next two have a 29 February
_LEAP_DAY = (2, 29)
_HALF_A_YEAR = 6


@dataclass(slots=True)
class _Logged:
    """What the log has said of a request so far."""

    place: str
    arrival_ns: Ns
    prompt: tuple[int, ...] | None = None
    forced: int | None = None
    answer: int = 0


def vllm(path: Path) -> Iterator[Row]:
    """Requests by the order of their lines; one that was cut off by the log's end has what was logged of it."""
    found: dict[str, _Logged] = {}
    clock = _Clock()
    for place, line in plain_lines(path):
        match = _LINE.search(line)
        if match is None:
            continue
        at_ns, message = clock.read(*map(int, match.groups()[:5])), match[6]
        if received := _RECEIVED.match(message):
            known, forced = found.setdefault(received[1], _Logged(place, at_ns)), _FORCED.match(received[2])
            known.forced = int(forced[1]) if forced else None
            known.prompt = known.prompt or _ids(_PROMPT_IDS, received[2])
        elif details := _DETAILS.match(message):
            known = found.setdefault(details[1], _Logged(place, at_ns))
            known.prompt = _ids(_PROMPT_IDS, details[2])
        elif (answer := _ANSWER.match(message)) and answer[1] in found:
            found[answer[1]].answer += len(_ids(_ANSWER_IDS, answer[3]) or ())
    return (Row(logged.place, partial(_request, logged)) for logged in found.values())


def _request(logged: _Logged, salt: bytes) -> LoggedRequest:
    if logged.prompt is None:
        raise UnusableRowError("requests without prompt_token_ids (vLLM writes them at log level DEBUG)")
    answer = logged.answer or logged.forced
    if answer is None:
        raise UnusableRowError("requests whose answer was not logged (--enable-log-outputs at log level DEBUG)")
    blocks = token_blocks(logged.prompt, block_size=BLOCK_SIZE, salt=salt)
    return LoggedRequest(logged.arrival_ns, len(logged.prompt), answer, blocks=blocks)


def _ids(pattern: re.Pattern[str], text: str) -> tuple[int, ...] | None:
    match = pattern.match(text)
    return None if match is None else tuple(map(int, match[1].replace(",", " ").split()))


class _Clock:
    """Times of lines that name no year: a month far before the one before it is in the next year.

    Years have no 29 February until a line is of that day.
    """

    def __init__(self) -> None:
        self._year = _COMMON_YEAR
        self._month = 0
        self._leap = False

    def read(self, month: int, day: int, hour: int, minute: int, second: int) -> Ns:
        if month < self._month - _HALF_A_YEAR:
            self._year += 1
            self._leap = False
        self._month = month
        self._leap |= (month, day) == _LEAP_DAY
        first = datetime(self._year, month, 1, hour, minute, second, tzinfo=UTC)
        days = day - 1 + (self._leap and month > _LEAP_DAY[0])
        return int((first + timedelta(days=days)).timestamp()) * NS_PER_S
