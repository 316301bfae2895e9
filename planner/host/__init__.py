"""Hosts: who compiles a whole program, and under which settings."""
