"""What crosses a process: dataclasses as JSON (`codec`), the process that is spoken to (`process`), and its own side (`serve`)."""
