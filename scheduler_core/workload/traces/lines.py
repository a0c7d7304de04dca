"""Lines of a trace file, numbered and bounded, with the file's checksum; whatever is no text is refused."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from scheduler_core.types.errors import InputError, Problem

LONGEST_LINE = 4 * 1024 * 1024

_MAGIC = (
    (b"\x1f\x8b", "is compressed with gzip; unpack it first (gunzip)"),
    (b"PK\x03\x04", "is a zip archive (or a spreadsheet); unpack it or export it as CSV first"),
    (b"BZh", "is compressed with bzip2; unpack it first"),
    (b"\xfd7zXZ\x00", "is compressed with xz; unpack it first"),
    (b"\x28\xb5\x2f\xfd", "is compressed with zstd; unpack it first"),
    (b"PAR1", "is a Parquet file; export it as CSV or JSON lines first"),
    (b"\xff\xfe", "is UTF-16 text; save it as UTF-8"),
    (b"\xfe\xff", "is UTF-16 text; save it as UTF-8"),
    (b"version https://git-lfs", "is a Git LFS pointer, not the data; fetch the file itself (git lfs pull)"),
)


class Lines:
    """Iterates over (line number from 1, text without its line end); knows size and SHA-256 when it has ended."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._hash = hashlib.sha256()
        self.bytes = 0

    @property
    def sha256(self) -> str:
        """Hex digest of the bytes read so far."""
        return self._hash.hexdigest()

    def __iter__(self) -> Iterator[tuple[int, str]]:
        number = 0
        while raw := self._read(number + 1):
            number += 1
            if number == 1:
                _refuse_magic(raw)
                raw = raw.removeprefix(b"\xef\xbb\xbf")
            yield number, _decode(number, raw)
        if number == 0:
            raise refusal("is empty")

    def _read(self, number: int) -> bytes:
        try:
            raw = self._stream.readline(LONGEST_LINE + 1)
        except OSError as error:
            raise refusal(f"cannot be read: {error.strerror or error}") from None
        if len(raw) > LONGEST_LINE:
            raise refusal(f"is longer than {LONGEST_LINE // 1024 // 1024} MiB; is this a trace?", number)
        self._hash.update(raw)
        self.bytes += len(raw)
        return raw


def refusal(message: str, line: int | None = None) -> InputError:
    """The error that refuses a file as a whole."""
    return InputError([Problem("file" if line is None else f"line {line}", message)])


@contextmanager
def opened(source: "str | Path | BinaryIO") -> Iterator[BinaryIO]:
    """``source`` as a binary stream at its start: a path is opened and closed here, a stream is the caller's."""
    if not isinstance(source, str | Path):
        if source.seekable():
            source.seek(0)
        yield source
        return
    try:
        stream = Path(source).open("rb")  # noqa: SIM115 - closed below; only opening may turn into a refusal
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise refusal(f"{source} cannot be opened: {reason}") from None
    with stream:
        yield stream


def _refuse_magic(raw: bytes) -> None:
    for magic, message in _MAGIC:
        if raw.startswith(magic):
            raise refusal(message)


def _decode(number: int, raw: bytes) -> str:
    line = raw.rstrip(b"\r\n")
    if b"\r" in line:
        raise refusal("has a carriage return inside; save the file with LF or CRLF line ends", number)
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise refusal(
            f"is not UTF-8 text (byte 0x{line[error.start]:02x} at place {error.start + 1})", number
        ) from None
