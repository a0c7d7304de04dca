"""Prompts to salted block identities: equal beginnings stay equal, and nothing can be read back.

Each identity is a keyed digest over all that stands before its end, so two prompts share an identity exactly where they
share everything before. Without the salt, which stays on the machine, a guessed prompt cannot be confirmed.
"""

import hashlib
from collections.abc import Sequence

CHARACTERS_A_TOKEN = 4
"""Where token borders lie is not in a log; text is cut on one grid, so that equal beginnings are cut alike."""


def text_blocks(text: str, *, prompt_tokens: int, block_size: int, salt: bytes) -> tuple[int, ...]:
    """Identities of the blocks that both ``prompt_tokens`` and the text fill, at `CHARACTERS_A_TOKEN`."""
    width = block_size * CHARACTERS_A_TOKEN
    digest = hashlib.blake2b(key=salt[:64], digest_size=7)
    found = []
    for place in range(min(prompt_tokens // block_size, len(text) // width)):
        digest.update(text[place * width : (place + 1) * width].encode())
        found.append(int.from_bytes(digest.digest(), "big"))
    return tuple(found)


def salted(identity: int, salt: bytes) -> int:
    """Somebody else's identity of a block as one of ours."""
    digest = hashlib.blake2b(identity.to_bytes(16, "little", signed=True), key=salt[:64], digest_size=7)
    return int.from_bytes(digest.digest(), "big")


def token_blocks(tokens: Sequence[int], *, block_size: int, salt: bytes) -> tuple[int, ...]:
    """Identities of the whole blocks of a prompt that is known token by token."""
    digest = hashlib.blake2b(key=salt[:64], digest_size=7)
    found = []
    for place in range(len(tokens) // block_size):
        block = tokens[place * block_size : (place + 1) * block_size]
        digest.update(b"".join(token.to_bytes(8, "little") for token in block))
        found.append(int.from_bytes(digest.digest(), "big"))
    return tuple(found)
