"""A program that can be carried to another process: the Dynamo graph as JSON, and a module rebuilt from it.

A worker measures any plan with it by `torch.compile(loaded.module, backend="fuseplan", options={"plan": …})`, beside
eager and plain torch.compile: Dynamo captures the rebuilt module to a graph of the same key. `format` has the document, which
is read without torch; `write` makes it, `key` and `edit` tell what it is and change it, `load` brings it back.
"""
