"""Hypothesis profiles: `dev` explores, `ci` repeats the same cases everywhere, `long` digs."""

import os

from hypothesis import HealthCheck, settings

pytest_plugins = ["tests.object_stores"]

_slow = [HealthCheck.too_slow, HealthCheck.data_too_large]
settings.register_profile("dev", max_examples=100, deadline=None, suppress_health_check=_slow)
settings.register_profile(
    "ci", max_examples=200, deadline=None, derandomize=True, suppress_health_check=_slow
)
settings.register_profile("long", max_examples=10_000, deadline=None, suppress_health_check=_slow)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "dev"))
