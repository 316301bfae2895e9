"""Cost models that predict device and host time of regions. No code yet: it comes with tuning."""
