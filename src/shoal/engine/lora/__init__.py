"""LoRA adapters: reading PEFT's format, and adding their updates to a model's matrix products.

    y = W x + scale · B (A x)        A [r, in], B [out, r]; W stays as it is, quantized or not

Rows of one step may belong to different adapters, or to none (docs/lora.md).
"""
