"""Tests with torch that need no GPU."""

from fresh import fresh_compiler

__all__ = ["fresh_compiler"]
