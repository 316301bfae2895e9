"""From Dynamo's graph: its key, its inputs, its symbols, and what else identifies a program before anything is traced."""
