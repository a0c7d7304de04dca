"""HTTP/1.1 as a load client needs it: stamps at the socket, reused connections, addresses checked when connecting.

Parsing is llhttp's (``httptools``), the event loop libuv's (``uvloop``) where there is one.
"""
