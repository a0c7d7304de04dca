"""A server whose token times are known: it speaks vLLM's and SGLang's streams and metric pages, and fails on demand.

Started as a process of its own, on loopback, by tests, by the benchmark and by the client's self-test. It proves
nothing about a real server; what it proves is that a client measures what was sent.
"""
