"""The quick start: a real 135 M model, a real task, from plan to report in minutes on a laptop."""
