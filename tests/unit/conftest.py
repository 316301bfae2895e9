"""How the unit tests run: property tests without a deadline, since a busy machine is no bug."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("fuseplan", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.load_profile("fuseplan")
