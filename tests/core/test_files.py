"""Files appear whole or not at all."""

import hashlib
from pathlib import Path

import pytest

from scheduler_core.files import partial_path, sha256_of, whole, write_json


def test_a_file_gets_its_name_when_it_is_complete(tmp_path: Path) -> None:
    target = tmp_path / "a.txt"
    with whole(target) as partial:
        partial.write_text("half")
        assert not target.exists()
        partial.write_text("whole")
    assert target.read_text() == "whole"
    assert list(tmp_path.iterdir()) == [target]


def test_a_failure_leaves_what_was_there_before(tmp_path: Path) -> None:
    target = tmp_path / "a.json"
    write_json(target, {"a": 1})
    with pytest.raises(ValueError, match="JSON"):
        write_json(target, {"a": float("nan")})
    with pytest.raises(OSError, match="disk"), whole(target) as partial:
        partial.write_text("half")
        raise OSError("disk full")
    assert target.read_text() == '{\n "a": 1\n}\n'
    assert not partial_path(target).exists()


def test_a_digest_is_that_of_the_content(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"x" * 300_000)
    assert sha256_of(path) == hashlib.sha256(b"x" * 300_000).hexdigest()
