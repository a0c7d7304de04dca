"""One run, composed: driver, policy, executor and evidence, started as ``python -m gpu_runner.run JOB.json``.

This is the only place where the core, an executor and the evidence meet. It imports torch only when the job's target
needs it.
"""
