"""Logs of what people already run, as plain trace rows: spans, gateway logs, server request logs.

Prompt text never leaves the machine: it becomes salted block identities here, and is dropped.
"""
