"""Server-sent events out of bytes, however the network cut them."""


class EventParser:
    """Yields the data of each event. ``comments`` counts keep-alive lines, ``torn`` tells of an unfinished event."""

    __slots__ = ("_tail", "comments")

    def __init__(self) -> None:
        self._tail = b""
        self.comments = 0

    @property
    def torn(self) -> bool:
        """Whether the bytes so far end inside an event."""
        return bool(self._tail.strip())

    def feed(self, data: bytes) -> list[bytes]:
        """The data of the events that ``data`` completes, several data lines joined by newlines."""
        if self._tail:
            data = self._tail + data
        if b"\r" in data:
            held = data.endswith(b"\r")  # its newline may still come
            data = data[: len(data) - held].replace(b"\r\n", b"\n").replace(b"\r", b"\n") + b"\r" * held
        if data.startswith(b"data: ") and data.endswith(b"\n\n") and data.count(b"\n") == 2:
            self._tail = b""
            return [data[6:-2]]  # one whole event, as nearly every read brings it
        parts = data.split(b"\n\n")
        self._tail = parts.pop()
        events = []
        for part in parts:
            if part.startswith(b"data: ") and b"\n" not in part:
                events.append(part[6:])
            elif part:
                found = self._lines(part)
                if found is not None:
                    events.append(found)
        return events

    def _lines(self, part: bytes) -> bytes | None:
        """Data of an event with other lines than one of data; None when it has none."""
        lines = []
        for line in part.split(b"\n"):
            if line.startswith(b":"):
                self.comments += 1
            elif line.startswith(b"data:"):
                lines.append(line[5:].removeprefix(b" "))
        return b"\n".join(lines) if lines else None
