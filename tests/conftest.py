"""What holds for every test."""

from hypothesis import settings

# An example that takes long says something of the machine, nothing of the code: no test is timed.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
