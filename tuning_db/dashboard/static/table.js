// to come: rows that are made as they come into sight
