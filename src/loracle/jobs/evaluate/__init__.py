"""Is the tuned model better than the base, and is the merged one still the tuned one?"""
