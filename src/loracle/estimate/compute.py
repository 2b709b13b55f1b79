"""The work of one optimizer step: operations with their FLOPs and bytes, from a setup alone.

The dry run lists the operations that it saw; this module lists the same ones from the shape of
the model, in microseconds, so that both speak to one price list (`estimate.pricelist`). Counts are
those of transformers 5 with PEFT: how many elementwise passes a decoder layer makes, and how wide
they are, was counted on the real layers by dispatch (the tests count them again).

The base weights of LoRA are frozen: the gradient of the activations is computed, that of the
weights is not, so backward costs what forward does. Left out: the embedding look-up, positions,
masks, the data loader, logging.
"""

from dataclasses import dataclass

from loracle.domain.model import Linear
from loracle.domain.setup import TrainingSetup
from loracle.domain.trace import Op
from loracle.estimate.params import adapted_rows, trained
from loracle.estimate.stacks import Stack, stack_of


@dataclass(frozen=True, slots=True)
class Passes:
    """Bytes a token that stream between the matrix products of one layer, and their launches.

    `norm` is per norm and hidden width; `stream` the residual additions, gradient sums and dtype
    casts of the hidden width; `rotary` per query and key width; `value` per value width; `inner`
    per MLP width.
    """

    norm: float
    stream: float
    rotary: float
    value: float
    inner: float
    launches: int


@dataclass(frozen=True, slots=True)
class AdapterPasses:
    """The same for the adapter of one Linear, per input and output width."""

    inp: float
    out: float
    dropout: float  # per input width, where dropout is on
    launches: int


# Counted on transformers 5.17 and PEFT 0.21. PEFT's kbit upcast keeps the residual stream in fp32
# and casts around every quantised layer.
_PLAIN = (Passes(36, 12, 20, 0, 10, 30), Passes(88, 30, 32, 0, 18, 52))
_UPCAST = (Passes(28, 58, 52, 12, 38, 41), Passes(83, 96, 76, 20, 54, 64))
# One kernel each: read once, write once; gradients read what was saved.
_FUSED = (Passes(4, 12, 4, 0, 6, 8), Passes(8, 30, 4, 0, 10, 14))

# GELU's tanh form written out in PyTorch (gelu_new), per MLP width in fp32.
_TANH_CHAIN = (50.0, 87.0)

# A plain Linear casts x to fp32 for an fp32 adapter; a bitsandbytes one under autocast does not,
# but clones its output.
_ADAPTER_FP32 = (AdapterPasses(12, 10, 9, 6), AdapterPasses(18, 4, 9, 6))
_ADAPTER_BF16 = (AdapterPasses(0, 10, 5, 2), AdapterPasses(6, 4, 5, 2))
_ADAPTER_KBIT = (AdapterPasses(0, 14, 5, 5), AdapterPasses(6, 4, 5, 4))
_ADAPTER_UPCAST = (AdapterPasses(6, 22, 9, 6), AdapterPasses(18, 10, 9, 6))
_ADAPTER_FUSED = (AdapterPasses(0, 4, 0, 1), AdapterPasses(2, 0, 0, 2))

# Bytes a logit: what the loss reads and writes around the head's matrix products.
_HEAD_BYTES = {"whole": (14, 18), "tiled": (8, 12), "fused": (6, 4)}

# Bytes of packed weight read and 16-bit weight written, per parameter, each time it is used.
_DEQUANT_BYTES = {"nf4": 2.57, "nf4-double": 2.52, "int8": 3.0, "gptq4": 2.56, "gptq4-torch": 16.0}
_DEQUANT_LAUNCHES = {"nf4": 1, "nf4-double": 3, "int8": 3, "gptq4": 2, "gptq4-torch": 8}

# Optimizer: bytes a trained parameter, kernels a tensor, on fp32 parameters.
_OPTIMIZER_BYTES = {
    "adamw_torch": 84, "adamw_torch_fused": 28, "adamw_8bit": 20, "paged_adamw_8bit": 20,
    "paged_adamw_32bit": 28, "sgd": 12,
}  # fmt: skip
_OPTIMIZER_LAUNCHES = {
    "adamw_torch": 0.5, "adamw_torch_fused": 0.28, "adamw_8bit": 2.0, "paged_adamw_8bit": 2.0,
    "paged_adamw_32bit": 2.0, "sgd": 0.1,
}  # fmt: skip
_CLIP_BYTES = 12


def step_ops(setup: TrainingSetup) -> tuple[Op, ...]:
    """Every operation of one optimizer step on one card, alike ones together.

    `flops` and `bytes` of an Op are of one run; `count` covers layers and accumulation steps.
    """
    return _Step(setup).ops()


def flops_per_token(setup: TrainingSetup) -> float:
    """FLOPs of one token: forward, recomputation and backward."""
    tokens = setup.micro_step_tokens * setup.grad_accum
    return sum(op.flops * op.count for op in step_ops(setup)) / tokens


class _Step:
    """Collects the operations of one setup."""

    def __init__(self, setup: TrainingSetup) -> None:
        self.setup = setup
        self.shape = setup.model
        self.stack: Stack = stack_of(setup.stack)
        self.tokens = setup.micro_step_tokens
        self.full = setup.method == "full" or setup.lora is None
        # CUDA's autocast runs LayerNorm in fp32, and a bitsandbytes layer answers in its input's
        # dtype: the branch behind each LayerNorm is as wide as with the kbit upcast.
        wide_norm = self.shape.norm.startswith("layernorm") and setup.autocast is not None
        self.upcast = setup.quant is not None and (setup.kbit_upcast or wide_norm)
        self.dtype = setup.autocast or setup.base_dtype
        # share of the layers that run forward a second time
        self.again = setup.recomputed_layers / max(1, self.shape.num_layers)
        self.adapted = adapted_rows(setup)
        self.rows: list[Op] = []

    def ops(self) -> tuple[Op, ...]:
        for row in self.shape.linears:
            if row.role != "head":
                self._linear(row)
        self._experts()
        self._between()
        for row in self.adapted:
            self._adapter(row)
        self._attention()
        self._linear_attention()
        self._head()
        self._optimizer()
        return tuple(self.rows)

    def _add(
        self, kind: str, name: str, phase: str, flops: float, num_bytes: float,
        shape: tuple[int, ...], runs: float, launches: int = 1,
    ) -> None:  # fmt: skip
        count = round(runs * self.setup.grad_accum)
        if count:
            self.rows.append(
                Op(kind, name, flops, num_bytes, self.dtype, shape, phase, count, launches)
            )

    def _twice(
        self, kind: str, name: str, flops: float, num_bytes: float, shape: tuple[int, ...],
        runs: float, launches: int = 1,
    ) -> None:  # fmt: skip
        """Forward, and once more where the layer is recomputed."""
        self._add(kind, name, "forward", flops, num_bytes, shape, runs, launches)
        self._add(kind, name, "recompute", flops, num_bytes, shape, runs * self.again, launches)

    def _gemm(self, name: str, m: int, n: int, k: int, runs: float, *, again: bool = True) -> None:
        """y = x W^T, the gradient of x, and that of W where all weights are trained."""
        flops, num_bytes = 2.0 * m * n * k, 2.0 * (m * n + m * k + n * k)
        self._add("gemm", name, "forward", flops, num_bytes, (m, n, k), runs)
        if again:
            self._add("gemm", name, "recompute", flops, num_bytes, (m, n, k), runs * self.again)
        self._add("gemm", name, "backward", flops, num_bytes, (m, k, n), runs)
        if self.full:
            self._add("gemm", name, "backward", flops, num_bytes, (n, k, m), runs)

    def _linear(self, row: Linear) -> None:
        again = not self._stops_before(row)
        params = row.in_features * row.out_features
        self._gemm(row.name, self.tokens, row.out_features, row.in_features, row.count, again=again)
        self._dequant(row.name, params, row.count, again=again)

    def _stops_before(self, row: Linear) -> bool:
        """Whether recomputation ends before this product: nothing after it is saved.

        Non-reentrant checkpointing, transformers 5's choice, stops at the last saved tensor, which
        lies before a layer's last product; an adapter on it saves more.
        """
        last = row.role == "mlp" and row.out_features == self.shape.hidden_size
        return last and not self.stack.transformers_4 and row not in self.adapted

    def _dequant(self, name: str, params: int, runs: float, *, again: bool = True) -> None:
        quant = self.setup.quant
        if quant is None:
            return
        num_bytes, launches = _DEQUANT_BYTES[quant] * params, _DEQUANT_LAUNCHES[quant]
        add = self._twice if again else self._forward
        add("dequant", name, 0.0, num_bytes, (params,), runs, launches)
        self._add("dequant", name, "backward", 0.0, num_bytes, (params,), runs, launches)

    def _experts(self) -> None:
        shape = self.shape
        if not shape.num_experts:
            return
        hidden, inner = shape.hidden_size, shape.expert_intermediate_size
        up = 2 if shape.mlp_gated else 1
        for name, n, k in (("up", up * inner, hidden), ("down", hidden, inner)):
            self._expert_product(f"experts.{name}", n, k)
        each = 1
        if self.stack.transformers_4:
            params = (up + 1) * hidden * inner
            self._dequant("experts", params, shape.num_experts * shape.num_moe_layers)
            each = shape.num_experts  # a loop over experts gathers and scatters for each
        routed = self.tokens * shape.experts_per_token
        moved = routed * (12.0 * hidden + 10.0 * inner) * (1 if self.stack.transformers_4 else 2)
        self._twice("elementwise", "experts", 0.0, moved, (routed, hidden),
                    shape.num_moe_layers, 12 + 2 * each)  # fmt: skip
        self._add("elementwise", "experts", "backward", 0.0, 1.5 * moved, (routed, hidden),
                  shape.num_moe_layers, 18 + 2 * each)  # fmt: skip

    def _expert_product(self, name: str, n: int, k: int) -> None:
        """One product an expert in transformers 4, one grouped product a layer in 5."""
        shape = self.shape
        routed = self.tokens * shape.experts_per_token
        if self.stack.transformers_4:
            rows = max(1, routed // shape.num_experts)
            self._gemm(name, rows, n, k, shape.num_experts * shape.num_moe_layers)
            return
        flops = 2.0 * routed * n * k
        moved = 2.0 * (routed * (n + k) + shape.num_experts * n * k)
        self._twice("gemm", name, flops, moved, (routed, n, k), shape.num_moe_layers)
        for _ in range(2 if self.full else 1):
            self._backward("gemm", name, flops, moved, (routed, k, n), shape.num_moe_layers)

    def _between(self) -> None:
        """Norms, residuals, rotary embedding, activation: what only streams memory."""
        shape = self.shape
        table = _FUSED if self.stack.fused else _UPCAST if self.upcast else _PLAIN
        query, key = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
        dense = sum(
            row.count * row.in_features
            for row in shape.linears
            if row.role in ("mlp", "shared_expert") and row.out_features == shape.hidden_size
        ) / max(1, shape.num_layers)
        act = str(shape.config.get("hidden_act") or shape.config.get("activation_function") or "")
        chain = _TANH_CHAIN if act == "gelu_new" and not self.stack.fused else (0.0, 0.0)
        norms = shape.norms_per_layer * (1.0 if shape.norm.startswith("rms") else 0.5)
        for phase, row, tanh in zip(("forward", "backward"), table, chain, strict=True):
            wide = (
                shape.hidden_size * (row.norm * norms + row.stream)
                + row.rotary * (query + key)
                + row.value * key
                + row.inner * dense * (1.0 if shape.mlp_gated else 0.5)
                + tanh * dense * (1.0 if self.upcast else 0.5)
                + (row.norm * (query + key) if shape.qk_norm else 0.0)
            )
            add = self._twice if phase == "forward" else self._backward
            launches = row.launches + (6 if shape.qk_norm and not self.stack.fused else 0)
            add("elementwise", "layer", 0.0, wide * self.tokens,
                (self.tokens, shape.hidden_size), shape.num_layers, launches)  # fmt: skip

    def _forward(
        self, kind: str, name: str, flops: float, num_bytes: float, shape: tuple[int, ...],
        runs: float, launches: int = 1,
    ) -> None:  # fmt: skip
        self._add(kind, name, "forward", flops, num_bytes, shape, runs, launches)

    def _backward(
        self, kind: str, name: str, flops: float, num_bytes: float, shape: tuple[int, ...],
        runs: float, launches: int = 1,
    ) -> None:  # fmt: skip
        self._add(kind, name, "backward", flops, num_bytes, shape, runs, launches)

    def _adapter(self, row: Linear) -> None:
        lora = self.setup.lora
        assert lora is not None
        m, n, k, rank = self.tokens, row.out_features, row.in_features, lora.rank
        forward, backward = self._adapter_passes(lora.dtype)
        drop = lora.dropout > 0
        flops = 2.0 * m * rank * (n + k)
        product = 2.0 * m * (n + k + 2 * rank)
        self._twice("gemm", "adapter", flops, product, (m, rank, max(n, k)), row.count, 2)
        self._add("gemm", "adapter", "backward", 2 * flops, 2 * product, (m, rank, max(n, k)),
                  row.count, 4)  # fmt: skip
        wide = m * ((forward.inp + drop * forward.dropout) * k + forward.out * n)
        self._twice("elementwise", "adapter", 0.0, wide, (m, k), row.count,
                    forward.launches + drop)  # fmt: skip
        wide = m * ((backward.inp + drop * backward.dropout) * k + backward.out * n)
        self._add("elementwise", "adapter", "backward", 0.0, wide, (m, k), row.count,
                  backward.launches + drop)  # fmt: skip

    def _adapter_passes(self, dtype: str) -> tuple[AdapterPasses, AdapterPasses]:
        if self.stack.fused_adapter:
            return _ADAPTER_FUSED
        if self.upcast:
            return _ADAPTER_UPCAST
        if self.setup.quant is not None and self.setup.quant.startswith("nf4"):
            return _ADAPTER_KBIT
        return _ADAPTER_FP32 if dtype == "float32" else _ADAPTER_BF16

    def _attention(self) -> None:
        shape, setup = self.shape, self.setup
        layers = next((row.count for row in shape.linears if row.role == "attention"), 0)
        length, batch, heads = setup.seq_len, setup.micro_batch, shape.num_heads
        dims = (batch, heads, length, length, shape.head_dim)
        if self._materialises_scores():
            self._scores(layers)
            return
        window = shape.sliding_window or length
        masked = setup.attention == "sdpa-masked" or _packs_by_mask(setup)
        square = masked or (setup.attention == "sdpa" and window < length)  # SDPA takes a mask
        seen = length if square else min(length, window)
        pairs = batch * heads * (float(length) * seen - (0 if square else seen * seen / 2))
        width = shape.head_dim
        moved = 2.0 * self.tokens * width * (2 * heads + 2 * shape.num_kv_heads)
        old = self.stack.transformers_4 or setup.attention == "flash_attention_2"
        name = "masked" if masked else "flash" if old else "sdpa"
        self._twice("attention", name, 4 * pairs * width, moved, dims, layers)
        self._add("attention", name, "backward", 10 * pairs * width, 2 * moved, dims,
                  layers, 3)  # fmt: skip

    def _scores(self, layers: int) -> None:
        """Two products forward, four backward, and every score streamed between them."""
        shape, setup = self.shape, self.setup
        rows = setup.micro_batch * shape.num_heads * setup.seq_len
        scores = float(rows) * setup.seq_len
        product = (2.0 * scores * shape.head_dim, 2 * scores, (rows, setup.seq_len, shape.head_dim))
        kept, self.dtype = self.dtype, "float32" if self._broadcasts() else self.dtype
        self._twice("gemm", "attention", *product, 2 * layers)
        self._backward("gemm", "attention", *product, 4 * layers)
        self.dtype = kept
        wide = (rows, setup.seq_len)
        self._twice("elementwise", "scores", 0.0, 24 * scores, wide, layers, 4)
        self._backward("elementwise", "scores", 0.0, 34 * scores, wide, layers, 5)

    def _broadcasts(self) -> bool:
        """Falcon hands SDPA one key head for all: only the math path takes it, in fp32."""
        return self.shape.model_type == "falcon" and self.shape.num_kv_heads == 1

    def _materialises_scores(self) -> bool:
        """Eager attention, and where SDPA falls to its math path or transformers to eager."""
        if self.setup.attention == "flash_attention_2":
            return False
        capped = bool(self.shape.attention_softcap) and self.stack.transformers_4
        return self.setup.attention == "eager" or capped or self._broadcasts()

    def _linear_attention(self) -> None:
        """Gated delta rule in transformers' own PyTorch: chunk by chunk, row by row.

        Without flash-linear-attention every chunk of 64 tokens is a chain of small kernels.
        """
        row = next((row for row in self.shape.linears if row.role == "linear_attention"), None)
        if row is None:
            return
        wide = max(r.out_features for r in self.shape.linears if r.role == "linear_attention") / 2
        chunks = self.setup.seq_len / 64
        for phase, num_bytes, fixed, each in (
            ("forward", 1275, 450, 12),
            ("backward", 1900, 650, 18),
        ):
            add = self._twice if phase == "forward" else self._backward
            add("elementwise", "delta rule", 0.0, num_bytes * wide * self.tokens,
                (self.tokens, int(wide)), row.count, round(fixed + each * chunks))  # fmt: skip

    def _head(self) -> None:
        shape, kind = self.shape, self.stack.head
        m, vocab, hidden = self.tokens, shape.vocab_size, shape.hidden_size
        self._gemm("lm_head", m, vocab, hidden, 1, again=False)
        if kind == "tiled":
            flops = 2.0 * m * vocab * hidden
            self._add("gemm", "lm_head", "backward", flops, 2.0 * (m + vocab) * hidden,
                      (m, vocab, hidden), 1)  # fmt: skip
        for phase, wide in zip(("forward", "backward"), _HEAD_BYTES[kind], strict=True):
            softcap = 8 if shape.logit_softcap and kind == "whole" else 0
            self._add("loss", "loss", phase, 0.0, float(wide + softcap) * m * vocab,
                      (m, vocab), 1, 12)  # fmt: skip

    def _optimizer(self) -> None:
        setup = self.setup
        params, tensors = trained(setup)
        wide = 4 if not self.full and setup.lora and setup.lora.dtype == "float32" else 2
        per_param = (_OPTIMIZER_BYTES[setup.optimizer] + _CLIP_BYTES) * wide / 4
        launches = max(1, round(tensors * _OPTIMIZER_LAUNCHES[setup.optimizer]))
        shards = setup.num_gpus if setup.parallel == "fsdp" else 1
        self.rows.append(
            Op("optimizer", setup.optimizer, 0.0, per_param * params / shards, "float32",
               (params,), "optimizer", 1, launches)
        )  # fmt: skip


def _packs_by_mask(setup: TrainingSetup) -> bool:
    """Whether loracle's trainer packs with a block mask on any card (`domain.model.keeps_apart`).

    The models that it lays flat on newer cards take a mask too on those before Ampere, whose rate
    of attention is already that of masked rows.
    """
    return (
        setup.packing
        and setup.stack == "loracle"
        and setup.attention == "sdpa"
        and setup.model.keeps_apart == ("rows",)
    )
