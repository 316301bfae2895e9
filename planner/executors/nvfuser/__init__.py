"""nvFuser: ATen ops lowered into `nvfuser_direct` fusions by a table, file by file by subject."""
