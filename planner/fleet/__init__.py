"""Tuning on many machines: the driver plans, searches and keeps; workers run where the devices are. Reading order: `host` (where a
device is), `remote` (its workers as the driver sees them), `fleet` (all devices), `on_ray` (how they are reached, by Ray).
"""
