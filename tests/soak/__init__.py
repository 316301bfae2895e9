"""Many processes on one tuning database. What was acknowledged must be there, and no reader may ever err."""
