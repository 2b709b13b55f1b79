"""The lines between pass, warn and fail, each with the practice it comes from.

Figures marked (own) are judgement without a measured distribution behind them; the others name
the tool or thread whose practice they follow. `docs/recorded-machines.md` lists the few places
where we are milder than those, and why: an alarm on a healthy machine costs a renter more trust
than a missed oddity.
"""

from loracle.units import GB, GIB, MIB

# clock-event bits of NVML; tested with AND, never for equality
IDLE, APPLICATION_CLOCKS, POWER_CAP, HW_SLOWDOWN = 0x1, 0x2, 0x4, 0x8
SW_THERMAL, HW_THERMAL, POWER_BRAKE = 0x20, 0x40, 0x80
THERMAL = SW_THERMAL | HW_THERMAL
LIMITING = HW_SLOWDOWN | THERMAL | POWER_BRAKE  # DCGM: what counts as a failure

MEMORY_BELOW, MEMORY_ABOVE = 0.01, 0.005  # share of the table's total, NVML
CUDA_BELOW_NVML = 0.06  # CUDA leaves the driver's reserve out

IDLE_BYTES, IDLE_SHARE = 15 * MIB, 0.001  # Meta GCM: 15 MiB; own: a driver's baseline
USED_SHARE = 0.05  # lium: a foreign process with over 5 % of memory fails
USED_PERCENT = 5.0  # lium: or over 5 % of utilisation
IDLE_POWER_WARN, IDLE_POWER_FAIL = 0.45, 0.6  # of the limit, own

TIMING_CV_PASS = 0.05  # own: exclusive cards stay under 2-5 %
SLICE_GAP_MS = 2.0  # the shortest default time slice
LOST_WARN, LOST_FAIL = 0.05, 0.15  # share of the time that the kernel was not running, own
SLOW_FACTOR = 1.5  # a duration this much over the fast mode counts as interrupted
SLOW_SHARE = 0.02

TOGETHER_PASS, TOGETHER_FAIL = 0.90, 0.75  # rate with all cards busy over alone, own

GEMM_PASS, GEMM_WARN = 0.93, 0.85  # of the card's own published rate; gpu-fryer alarms at 10 %
PEAK_FLOOR = {"geforce": 0.9, "datacenter": 0.7, "workstation": 0.7, "mining": 0.5}
LOW_POWER_WATTS, LOW_POWER_FLOOR = 75.0, 0.5
COPY_PASS, COPY_WARN, COPY_OF_PEAK = 0.9, 0.75, 0.75  # DCGM: 0.75 of a good card
DEFAULT_COPY_SHARE = 0.8  # of the data sheet, where nobody measured the card

HALF_RATIO = (0.8, 1.25)  # bf16 over fp16 on Ampere and newer
FP64_TOLERANCE, FP64_OTHER_CLASS = 0.25, 2.5

SOAK_PASS, SOAK_WARN, SOAK_HARD = 0.95, 0.90, 0.85
# steady over burst: the lowest healthy card known is an H200 with 0.835 (own, 2026-11-30)
STEADY_SHARE, STEADY_TYPICAL = 0.75, 0.83
EARLY_FROM, EARLY_TO, LATE_SECONDS = 5.0, 15.0, 60.0
THERMAL_SHARE, THERMAL_RUN = 0.05, 3  # of samples; in a row
CELSIUS_PASS, CELSIUS_FAIL = 80.0, 88.0  # stas00: under 80 is fine
POWER_PASS, POWER_WARN = 0.98, 0.90  # limit over the card's default

PINNED_BYTES_PER_S = {1: 3.1e9, 2: 6.2e9, 3: 12.3e9, 4: 25e9, 5: 52e9, 6: 104e9}  # x16
LINK_PASS, LINK_WARN = 0.8, 0.5
LINK_FLOOR = 2.85e9  # vast.ai's self-test
# replays a lane and minute that DCGM allows, by generation
REPLAYS = {1: 0.15, 2: 0.3, 3: 0.48, 4: 0.96, 5: 1.92, 6: 3.84}
REPLAYS_FAIL = 80

RETIRED_WARN, RETIRED_FAIL = 10, 63  # DCGM: 63
REMAPPED_FAIL = 512  # DCGM, Azure
FATAL_XIDS = frozenset({48, 62, 63, 64, 74, 79, 92, 94, 95, 119, 120})

PATTERN_SHARE = 0.90  # of free memory
USABLE_PASS, USABLE_WARN = 0.90, 0.80  # of total
LINK_SPEED = 80e9  # no card's own memory is this slow, no link to the host this fast
SLOW_CHUNKS = 0.05  # of the chunks

CORES_PASS, CORES_WARN = 8, 4  # B-R2: 8 a card
RAM_PASS, RAM_WARN = 32 * GB, 16 * GB  # B-R2: 32 GB a card
SHM_PASS, SHM_WARN = 8 * GIB, 1 * GIB  # RunPod advice; torch's loader fails at 64 MB
THROTTLED_WARN, THROTTLED_FAIL = 0.02, 0.10
STEAL_WARN, STEAL_FAIL = 0.05, 0.15
DISK_PASS, DISK_WARN, DISK_FAIL = 1.0e9, 0.3e9, 0.2e9  # NVMe class, SATA class, own
DISK_FREE_SHARE, DISK_FREE_BYTES = 0.10, 50 * GB
NETWORK_PASS, NETWORK_FAIL = 500e6 / 8, 100e6 / 8  # vast.ai's floor is 100 Mb/s

NF4_ERROR = 0.25  # relative error of a 4-bit product against 16 bits, see probes.software
