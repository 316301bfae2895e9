"""The SQLite database of measurements and plans. No code yet: it comes with tuning."""
