"""What a running script compiles: met where Dynamo hands it to a backend, written down, counted; or taken over."""
