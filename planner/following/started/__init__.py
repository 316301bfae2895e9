"""A folder that stands first on the path of what a followed script starts: Python runs its sitecustomize.py before anything else."""
