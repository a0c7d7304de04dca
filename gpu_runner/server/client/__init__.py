"""The load client: sends an arrival plan on absolute deadlines and stamps every chunk that comes back.

`load` splits a plan over processes and turns their events into evidence records; each process is a `shard` that runs a
`player` on one event loop. A latency counts from the intended send time; what the client itself adds is measured apart,
and a run in which it was late is void.
"""
