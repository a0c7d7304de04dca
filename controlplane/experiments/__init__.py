"""Experiments: arms and repeats queued as runs, and the verdict once all of them have ended.

`services` has every write; `drafts` reads a submission with its saved versions, `deciding` computes the end.
"""
