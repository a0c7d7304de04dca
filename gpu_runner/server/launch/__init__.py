"""Starts a server from an administrator's template, waits until it is ready, and ends its whole process group."""
