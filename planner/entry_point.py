"""What torch.compile finds under the name "fuseplan". The hundreds of modules behind it stay: nobody looks for garbage among them meanwhile."""

from fuseplan.garbage import no_collection

with no_collection():  # which takes as long as importing them
    from fuseplan.backend import fuseplan_backend

__all__ = ["fuseplan_backend"]
