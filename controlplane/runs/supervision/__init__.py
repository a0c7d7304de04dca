"""One run under a worker: claim, spawn, watch, store, finish.

- `launcher`: the process-group leader between worker and run; standard library only, started by path.
- `process`: the spawned group as the worker sees it: lines in, stop, kill.
- `workdir`: scratch folder, job file and command of an attempt.
- `lease`: the thread that renews the lease and learns of requests.
- `intake`: what the run's messages do to the database and the storage.
- `supervisor`: the loop that ties them together.
"""
