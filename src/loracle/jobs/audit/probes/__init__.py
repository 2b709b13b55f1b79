"""Work that an audit puts a machine to: each probe returns plain numbers and columns.

Every probe is bounded in time and memory, frees what it took, launches kernels of at most tens
of milliseconds so that Ctrl-C is quick, and changes no setting of the card.
"""
