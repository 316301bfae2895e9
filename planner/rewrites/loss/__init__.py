"""Losses over logits: computed (chunked, room), matched (site), and the kind. A head's logits are often a step's largest tensor."""
