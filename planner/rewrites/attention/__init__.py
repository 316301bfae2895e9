"""Attention, the first kind of rewrite. Read ways, kernels, device, layouts, mask_source, inputs, site, result, calls, laid_out, rewrite, kind."""
