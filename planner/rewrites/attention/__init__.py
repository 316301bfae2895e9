"""Attention, the first kind of rewrite. Read ways, kernels, device, layouts, mask_source, inputs, site, calls, laid_out, result, rewrite, kind."""
