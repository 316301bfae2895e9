"""All SQL of the dashboard, one module for each subject. Values are always bound, never written into the text."""
