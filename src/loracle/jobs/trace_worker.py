"""The dry run in a process of its own: reads a setup on stdin, writes a trace to a file.

    python -m loracle.jobs.trace_worker PATH < setup.json

torch takes seconds to import and hundreds of MiB to hold, and transformers talks; a planner that
starts it apart stays light, quiet and easy to interrupt. Lines of `progress FRACTION` go to
stdout; an EngineError is the last line, as JSON, with exit code 4.
"""

import json
import os
import sys
from pathlib import Path

ENGINE_ERROR = 4


def main() -> int:
    """Trace the setup of stdin into the file named by the first argument."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from loracle.dryrun.trace import trace
    from loracle.errors import EngineError
    from loracle.jobs.trace_file import write_trace
    from loracle.jobs.traces import setup_of

    request = json.loads(sys.stdin.read())
    try:
        found = trace(
            setup_of(request["setup"]),
            capability=tuple(request["capability"]),
            progress=lambda share: print(f"progress {share:.3f}", flush=True),  # noqa: T201
        )
    except EngineError as error:
        values = {key: str(value) for key, value in error.values.items()}
        print(json.dumps({"message": error.message, "values": values}), flush=True)  # noqa: T201
        return ENGINE_ERROR
    write_trace(found, Path(sys.argv[1]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
