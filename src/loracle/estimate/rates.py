"""The physical constants of the speed laws: shares of a card's rates that real kernels reach.

A card brings its best measured matrix rate and its bandwidth; these say how much of them a
training step gets, what a kernel costs at least, and what the CPU pays to launch one. They are
the same for every model and every card of a generation. `benchmarks/speed/fit.py` fits what no
microbenchmark reads, `benchmarks/speed/loco.py` judges with each card's own rows left out.
"""

from dataclasses import dataclass

from loracle.domain.gpu import Gpu


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Shares are of the card's own figures; times are seconds."""

    gemm_share: float = 0.85  # of the best measured rate: power limit, shapes, L2
    gemm_ramp_s: float = 6e-6  # a matrix product's start and tail
    bandwidth_share: float = 0.8  # of the data sheet's bandwidth in elementwise passes
    kernel_s: float = 2.0e-6  # least time of a kernel on the card
    dequant_share: float = 0.6  # of bandwidth, unpacking 4-bit weights
    attention_forward_share: float = 0.75  # of the best matrix rate, flash kernels
    attention_backward_share: float = 0.6
    hopper_attention_share: float = 0.75  # of those: FlashAttention-2 does not use Hopper's units
    masked_attention_share: float = 0.25  # of those: an explicit mask takes the slower kernel
    launch_forward_s: float = 48e-6  # CPU time of a launch from Python
    launch_backward_s: float = 15e-6  # and from autograd's C++ thread
    launch_optimizer_s: float = 30e-6
    step_s: float = 0.01  # per optimizer step: data, callbacks, reading the loss
    micro_step_s: float = 0.005
    nvlink_share: float = 0.75  # of one direction, in NCCL's collectives
    pcie_share: float = 0.75
    pcie_through_host_share: float = 0.4  # no peer-to-peer: twice over the bus
    collective_s: float = 200e-6  # start of a collective that computation waits for
    exposed_link: float = 0.5  # of traffic that computation does not hide
    desktop_share: float = 0.7  # launch time with a desktop CPU beside the card


RATES = Rates()


def architecture(gpu: Gpu) -> str:
    """volta, turing, ampere, ada, hopper or blackwell, by compute capability."""
    major, minor = gpu.compute_capability
    if (major, minor) == (8, 9):
        return "ada"
    names = {6: "pascal", 7: "turing" if minor >= 5 else "volta", 8: "ampere", 9: "hopper"}
    return names.get(major, "blackwell")
