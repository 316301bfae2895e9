"""What every executor must do, written once: regions (cases.py) and the suite that runs them (suite.py)."""
