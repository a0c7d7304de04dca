"""The embedded stack: everything on one machine from one command, and nothing left behind, however it ends.

`up` is ``manage.py up``: it prepares the `home` folder and hands the `programs` (queue server, web, dispatch, workers)
to the `supervisor`, which starts each as a `child`. The `guardian` is a tiny process that outlives a killed supervisor
and ends what it left running.
"""
