"""The planner in a browser."""
