"""The stages of tuning one program: capture, regions, whole plans, the race, and what is kept of it."""
