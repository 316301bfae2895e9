"""How the unit tests run: property tests without a deadline, since a busy machine is no bug.

Each run draws other examples: half of what is usual in each of many runs reaches more than all of it in one.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile(
    "fuseplan", max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("fuseplan")
