#!/usr/bin/env python3
"""Training steps of GPT-2 in PyTorch, for scripts/bench_step.sh: a line a step, "step 12 loss 4.1234 101.234 ms".

    scripts/bench_step_torch.py PROGRAM DATA MODEL BATCH CONTEXT STEPS [NANOGPT]

PROGRAM: reference (the model of train_reference.py), huggingface (GPT2LMHeadModel, sdpa) or nanogpt (a checkout), with
torch.compile; reference-eager (attention by matmul and softmax) or huggingface-eager, without it. bf16 by autocast, on
a machine without a GPU f32; norm clipped to 1, fused AdamW, no dropout. Exit code 3: a library is not installed."""
import sys
import time

try:
    import numpy as np
    import torch
except ImportError as error:
    print(error)
    sys.exit(3)
from train_reference import GPT, Tokens

SIZES = {"d2": (2, 2, 128), "d4": (4, 4, 256), "d6": (6, 6, 384), "d8": (8, 8, 512), "d12": (12, 12, 768),
         "d24": (24, 16, 1024), "d36": (36, 20, 1280), "d48": (48, 25, 1600)}


def batches(tokens, B, T, device):
    """Consecutive windows, copied while the GPU computes."""
    first = 0
    while True:
        if first + B * T + 1 > len(tokens.data):
            first = 0
        window = torch.from_numpy(tokens.data[first:first + B * T + 1].astype(np.int64))
        first += B * T
        pair = [window[:-1].view(B, T), window[1:].view(B, T)]
        yield [side.pin_memory().to(device, non_blocking=True) for side in pair] if device == "cuda" else pair


def make(program, size, T, V, nanogpt):
    """The model, and the mean loss as a function of the compiled model and a batch."""
    L, NH, C = size
    if program.startswith("reference"):
        return GPT(L, NH, C, T, V, program == "reference-eager"), lambda model, x, y: model(x, y) / x.numel()
    if program == "nanogpt":
        sys.path.insert(0, nanogpt)
        from model import GPT as NanoGPT, GPTConfig
        return (NanoGPT(GPTConfig(n_layer=L, n_head=NH, n_embd=C, block_size=T, vocab_size=V)),
                lambda model, x, y: model(x, y)[1])
    try:
        from transformers import GPT2Config, GPT2LMHeadModel
    except ImportError as error:
        print(error)
        sys.exit(3)
    attention = "eager" if program == "huggingface-eager" else "sdpa"
    model = GPT2LMHeadModel(GPT2Config(n_layer=L, n_head=NH, n_embd=C, n_positions=T, vocab_size=V, resid_pdrop=0,
                                       embd_pdrop=0, attn_pdrop=0, use_cache=False, attn_implementation=attention))
    return model, lambda model, x, y: model(input_ids=x, labels=x).loss


def main(program, data, model_name, B, T, steps, nanogpt=None):
    B, T, steps = int(B), int(T), int(steps)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(1)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    tokens = Tokens(data)
    model, loss_of = make(program, SIZES[model_name], T, 256 if tokens.are_bytes else 50304, nanogpt)
    model.to(device).train()
    params = list(model.parameters())
    optimizer = torch.optim.AdamW([{"params": [p for p in params if p.dim() >= 2], "weight_decay": 0.1},
                                   {"params": [p for p in params if p.dim() < 2], "weight_decay": 0.0}],
                                  lr=3e-4, betas=(0.9, 0.95), fused=True)
    compiled = model if program.endswith("-eager") else torch.compile(model)
    source = batches(tokens, B, T, device)
    x, y = next(source)
    for step in range(1, steps + 1):
        start = time.perf_counter()
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            loss = loss_of(compiled, x, y)
        x, y = next(source)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss = loss.item()                          # waits for the GPU
        print(f"step {step} loss {loss:.4f} {1e3 * (time.perf_counter() - start):.3f} ms", flush=True)


if not 7 <= len(sys.argv) <= 8:
    sys.exit(__doc__)
main(*sys.argv[1:])
