"""What `show`, `explain`, `diff` and `draw` have in common: which plans are meant, and how they are told. Imports no torch."""
