"""Questions to servers that close connections without saying so, as some do after a failure of theirs."""

import asyncio

import pytest

from gpu_runner.server.http.loop import run
from gpu_runner.server.http.pool import Origin, Pool
from gpu_runner.server.http.request import NoAnswerError, ask

FAILED = b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 4\r\n\r\noops"


async def _answers(*, answering: int) -> tuple[list[int], int]:
    """Statuses of two questions to a server that answers ``answering`` connections, then closes each."""
    opened = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal opened
        opened += 1
        await reader.readuntil(b"\r\n\r\n")
        if opened <= answering:
            writer.write(FAILED)
            await reader.readuntil(b"\r\n\r\n")  # closed only when the next question is under way
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        pool = Pool(Origin(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"))
        try:
            found = [(await ask(pool, "GET", "/a")).status, (await ask(pool, "GET", "/b")).status]
        finally:
            pool.close()
    return found, opened


def test_a_kept_connection_that_was_closed_is_replaced_once() -> None:
    assert run(_answers(answering=2)) == ([500, 500], 2)


def test_a_server_that_answers_no_more_is_said_to() -> None:
    with pytest.raises(NoAnswerError, match="connection"):
        run(_answers(answering=1))
