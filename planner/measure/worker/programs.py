"""Jobs on whole programs."""

from __future__ import annotations


class Programs:
    def __init__(self, device):
        pass


def capture(job, bench):
    raise NotImplementedError


def vet(job, bench):
    raise NotImplementedError


def race_sides(job, bench):
    raise NotImplementedError
