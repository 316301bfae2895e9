"""Attention, the first kind of rewrite. Read kernels, device, site (what all sites have), mask_source, calls, rewrite, kind."""
