"""What holds for every test."""

import os

from hypothesis import settings

# An example that takes long says something of the machine, nothing of the code: no test is timed. Drawn examples are
# the same in every run, so that a failure belongs to the change that shows it; `make explore` draws new ones.
settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))
