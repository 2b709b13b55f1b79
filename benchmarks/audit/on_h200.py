"""The audit on a real card: healthy, shared, shared from the middle, capped; and the card's row.

Run on a machine with one H200 that is otherwise idle (torch, nvidia-ml-py and bitsandbytes are
there, loracle is importable):

    python benchmarks/audit/on_h200.py OUT_FOLDER [healthy,shared,joined_later,capped]

About five minutes for all parts. OUT_FOLDER gets the recording, the report pages, every audit
as JSON, and summary.json with what was expected and what happened. Nothing sets a clock, a limit
or a mode; the card's settings are read before and after and compared.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOLD = "H200 141GB SXM"
PARTS = ("healthy", "shared", "joined_later", "capped")
CAP = 0.3
JOB = "Qwen/Qwen3-4B"  # what the machine is judged for: disk, memory, time and cost
NEIGHBOUR = """
import sys, time, torch
time.sleep(float(sys.argv[1]))
held = torch.empty(12 * 2**30, dtype=torch.uint8, device="cuda")
a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
print("working", flush=True)
while True:
    for _ in range(8):
        a @ a
    torch.cuda.synchronize()
"""
CAPPED = f"""
import sys, torch
torch.cuda._lazy_call(lambda: torch.cuda.set_per_process_memory_fraction({CAP}, 0))
from loracle.cli.app import main
sys.argv = ["loracle", *sys.argv[1:]]
main()
"""


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(ROOT / "src"), "LORACLE_LANG": "en"}


def audit(out: Path, name: str, *flags: str, code: str | None = None) -> dict:
    """One audit in a process of its own; its JSON, exit code and length."""
    head = [sys.executable, "-c", code] if code else [sys.executable, "-m", "loracle"]
    start = time.monotonic()
    done = subprocess.run(
        [*head, "audit", "--sold", SOLD, "--json", *flags],
        check=False, capture_output=True, text=True, env=environment(), cwd=ROOT,
    )  # fmt: skip
    seconds = time.monotonic() - start
    (out / f"{name}.json").write_text(done.stdout)
    if done.stderr.strip():
        print(done.stderr[-2000:])
    document = json.loads(done.stdout)
    checks = {check["code"]: check for check in document["checks"]}
    alarms = {code: c["status"] for code, c in checks.items() if c["status"] in ("warn", "fail")}
    print(f"{name}: exit {done.returncode}, {seconds:.0f} s, {document['keep']}, {alarms}")
    for code in ("LRA-SHARE-IDLE", "LRA-SHARE-TIMING", "LRA-MEM-PATTERN", "LRA-LOAD-GEMM"):
        print("   ", code, checks[code]["status"], checks[code]["found"]["text"])
    return {"exit": done.returncode, "seconds": seconds, "checks": checks, "document": document}


def settings() -> dict:
    """What nobody may have changed."""
    import pynvml

    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    found = {}
    for name in (
        "nvmlDeviceGetPersistenceMode", "nvmlDeviceGetComputeMode", "nvmlDeviceGetMigMode",
        "nvmlDeviceGetPowerManagementLimit", "nvmlDeviceGetEccMode",
    ):  # fmt: skip
        try:
            found[name] = getattr(pynvml, name)(handle)
        except pynvml.NVMLError as error:
            found[name] = str(error)
    pynvml.nvmlShutdown()
    return found


def neighbour(delay: float, *, wait: bool) -> subprocess.Popen:
    child = subprocess.Popen(
        [sys.executable, "-c", NEIGHBOUR, str(delay)], stdout=subprocess.PIPE, text=True
    )
    if wait:
        child.stdout.readline()
    return child


def main(out: Path, parts: tuple[str, ...]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    start, before = time.monotonic(), settings()
    results = {}
    if "healthy" in parts:
        results["healthy"] = audit(
            out, "healthy", JOB, "--soak", "20s", "--record", str(out / "h200.yaml"),
            "--report", str(out / "healthy.html"),
        )  # fmt: skip
    if "shared" in parts:
        other = neighbour(0, wait=True)
        try:
            page = str(out / "shared.html")
            results["shared"] = audit(out, "shared", "--quick", "--report", page)
        finally:
            other.kill()
            other.wait()
    if "joined_later" in parts:
        other = neighbour(12, wait=False)
        try:
            results["joined_later"] = audit(out, "joined_later", "--quick", "--soak", "12s")
        finally:
            other.kill()
            other.wait()
    if "capped" in parts:
        results["capped"] = audit(out, "capped", "--quick", "--soak", "12s", code=CAPPED)

    def failed(name: str, code: str) -> bool | None:
        return results[name]["checks"][code]["status"] == "fail" if name in results else None

    healthy = results.get("healthy")
    summary = {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "command": "python benchmarks/audit/on_h200.py OUT",
        "settings_unchanged": before == settings(),
        "settings": before,
        "healthy_passes": healthy["exit"] == 0 if healthy else None,
        "sharing_is_caught": failed("shared", "LRA-SHARE-IDLE"),
        "time_slicing_is_caught": failed("joined_later", "LRA-SHARE-TIMING"),
        "cap_is_caught": failed("capped", "LRA-MEM-PATTERN"),
        "seconds": {name: round(result["seconds"], 1) for name, result in results.items()},
        "total_seconds": round(time.monotonic() - start, 1),
        "card_row": healthy["document"]["measured"] if healthy else None,
        "software": healthy["document"]["software"] if healthy else None,
    }
    (out / "summary.json").write_text(json.dumps(summary, indent=1))
    print(json.dumps(summary, indent=1))


if __name__ == "__main__":
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "out").resolve()
    main(folder, tuple(sys.argv[2].split(",")) if len(sys.argv) > 2 else PARTS)
