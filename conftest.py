"""Settings for every test of the repository."""

from hypothesis import HealthCheck, settings

# Machines that run tests are shared and slow at times; how long an example takes to make says nothing about the code.
settings.register_profile("stoker", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("stoker")
