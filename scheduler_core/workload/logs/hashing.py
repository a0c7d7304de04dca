"""Prompt text to salted block identities: equal beginnings stay equal, and nothing can be read back.

Each identity is a keyed digest over all text up to its end, so two prompts share an identity exactly where they share
everything before. Without the salt, which stays on the machine, a guessed prompt cannot be confirmed.
"""

import hashlib

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
