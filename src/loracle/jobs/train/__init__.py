"""Train: one real run that never loses progress and is held against its plan."""
