"""The physical constants of the speed laws: shares of a card's rates that real kernels reach.

A card brings its best measured matrix rate, its bandwidth and its multiprocessors; these say how
much of them a training step gets, what a kernel costs at least, and what the CPU pays to launch
one. They are the same for every model and every card. Most were read on an H200 with
`benchmarks/speed/microbench.py` (`h200_microbench.json`); what no microbenchmark reads is fitted
to published runs by `benchmarks/speed/calibrate.py`, never to the runs that judge the law.
"""

from dataclasses import dataclass

from loracle.domain.gpu import Gpu


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Shares are of the card's own figures; times are seconds, rates a second.

    A pass over memory takes its bytes at the bandwidth that copies reach, and besides what a
    multiprocessor needs to issue them: cards with much bandwidth a multiprocessor reach less of it.
    """

    # Matrix products, of the best measured rate: power limit, shapes, kernels. On an H200 the
    # median over shapes is 0.90 (790e12 in a burst, 650e12 after seconds of nothing else).
    hopper_gemm_share: float = 0.90
    gemm_share: float = 0.82
    gemm_ramp_s: float = 4e-6  # start and tail of a product

    # Passes. H200: copies reach 0.88-0.91 of the bandwidth, all passes of a layer 0.64-0.70.
    bandwidth_share: float = 0.9
    issue_bytes_per_s: float = 95e9  # a multiprocessor, passes between products
    dequant_issue_bytes_per_s: float = 32e9  # a multiprocessor, unpacking 4-bit weights
    kernel_s: float = 2.0e-6  # least time of a kernel on the card
    blockwise_s: float = 4.0e-9  # a multiprocessor, one parameter of an 8-bit optimizer

    # Attention: share of the matrix rate for long sequences, and the length at half of it.
    attention_forward_share: float = 0.82
    attention_backward_share: float = 0.70
    attention_half_forward: float = 500.0
    attention_half_backward: float = 750.0
    hopper_flash_share: float = 0.52  # FlashAttention-2 does not use Hopper's units; cuDNN does
    masked_attention_share: float = 0.6  # an explicit mask, or a card before Ampere

    # The CPU: seconds a launch takes from Python, from autograd's C++ thread, inside bitsandbytes.
    # Microbenchmark and the H200 runs whose steps vary too much to judge a speed by.
    launch_forward_s: float = 48e-6
    bare_launch_share: float = 0.8  # of it without PEFT, whose own launches take 59e-6
    launch_backward_s: float = 15e-6
    launch_dequant_s: float = 27e-6
    launch_optimizer_s: float = 30e-6
    checkpoint_s: float = 0.6e-3  # a recomputed layer: random states saved and restored
    micro_step_s: float = 0.0045
    step_s: float = 0.01  # data, callbacks, reading the loss
    desktop_share: float = 0.7  # launch time with a desktop CPU beside the card

    # Links: shares of one direction, in NCCL's collectives.
    nvlink_share: float = 0.93
    pcie_share: float = 0.61
    pcie_through_host_share: float = 0.4  # no peer-to-peer: twice over the bus
    collective_s: float = 52e-6  # start of a collective that computation waits for
    exposed_link: float = 0.95  # of traffic that computation does not hide


RATES = Rates()


def architecture(gpu: Gpu) -> str:
    """volta, turing, ampere, ada, hopper or blackwell, by compute capability."""
    major, minor = gpu.compute_capability
    if (major, minor) == (8, 9):
        return "ada"
    names = {6: "pascal", 7: "turing" if minor >= 5 else "volta", 8: "ampere", 9: "hopper"}
    return names.get(major, "blackwell")
