"""The entry point. What is imported here is imported before the parent's death is watched for: as little as can be."""

from __future__ import annotations

from fuseplan.measure.worker.serve import main

if __name__ == "__main__":
    main()
