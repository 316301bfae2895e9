"""Tuning: `effort` says how much may be spent, `queue` works off many programs, `program` tunes one."""
