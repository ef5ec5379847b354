"""Unit tests are the same on every run and every machine: the examples are drawn alike, and slowness is no failure."""

from hypothesis import settings

settings.register_profile("unit", derandomize=True, deadline=None)
settings.load_profile("unit")
