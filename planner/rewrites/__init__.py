"""Rewrites: other ways to write a piece of a Dynamo graph that compute the same, one file or folder a kind. Read base, unfolded, kinds, apply."""
