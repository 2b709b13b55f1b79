"""Pure judgement: an observation, the sold card's fingerprint and thresholds become checks."""
