"""loracle: plan, check and run LoRA fine-tuning on rented cards."""

__version__ = "0.1.0"
