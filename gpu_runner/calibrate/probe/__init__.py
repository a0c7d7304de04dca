"""Calibration of a server from outside: a designed probe, and what its token times say of the server's steps."""
