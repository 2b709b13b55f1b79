"""Facts: data files and their loaders. Every value has a source and a date."""
