"""`python -m loracle.jobs.train RUN_FOLDER [--resume]`: what a detached run executes."""

import sys

from loracle.jobs.train.process import main

if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
