"""Evidence of a server seen from outside: what its load client stamped, and what its metric pages said meanwhile.

There are no steps here, so a request's time has two parts only: how late it was sent, and the rest. Everything that
only the server could know is typed as absent unless it exported it.
"""
