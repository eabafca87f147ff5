#!/usr/bin/env python3
"""Writes the reference of test_gpt: HuggingFace's GPT2LMHeadModel in float64.

    python3 -m pip install torch transformers safetensors
    scripts/make_reference.py                                       the two committed models, in test/reference
    scripts/make_reference.py --size 124M --out NAME.safetensors    GPT-2 124M: 1.1 GB, needs 6 GB of memory

NAME.model.safetensors holds the parameters as HuggingFace stores them (f32, exact). NAME.safetensors holds a batch
(tokens, targets; -1 = ignored) and, computed in float64: logits, loss (mean over the targets), grad.PARAMETER (rounded
to f32, that is by 6e-8, to keep the file small), and for a few AdamW steps on this batch the losses before each update
and the norms before clipping. Shapes, hyperparameters and versions are in its __metadata__.
"""
import argparse
import sys

import numpy as np
import torch
import transformers
from safetensors.numpy import save_file

# context: rows of the position table; "awkward" leaves some of them without a gradient and ignores a few targets.
# max_norm is between the first and the last norm, so that some steps are clipped and some are not.
SIZES = {
    "plain":   dict(B=4, T=32, L=2, NH=4, C=64, V=64, context=32, ignored=0,
                    steps=20, seed=1, lr=5e-4, max_norm=2.5),
    "awkward": dict(B=3, T=37, L=2, NH=3, C=120, V=101, context=41, ignored=6,
                    steps=20, seed=2, lr=2e-4, max_norm=4.0),
    "124M":    dict(B=4, T=64, L=12, NH=12, C=768, V=50257, context=1024, ignored=0,
                    steps=3, seed=3, lr=1e-4, max_norm=1.0),
}


def draw_parameters(model, C, rng):
    """Every term matters: no bias is 0, no layernorm weight is 1, attention is peaked (scores have a standard deviation
    of 1.4, logits of about 1.2), and embeddings are so small that layernorm's 1e-5 matters. Drawn in f32."""
    for name, p in model.named_parameters():
        if name.endswith("bias"):
            mean, deviation = 0.0, 0.1
        elif ".ln_" in name:
            mean, deviation = 1.0, 0.2
        elif ".wte." in name:
            mean, deviation = 0.0, 1.2 / C**0.5
        elif ".wpe." in name:
            mean, deviation = 0.0, 0.5 / C**0.5
        elif "c_attn" in name:
            mean, deviation = 0.0, 1.2 / C**0.5
        else:
            mean, deviation = 0.0, 0.7 / p.shape[0]**0.5        # Conv1D is (in, out)
        values = np.float32(mean) + np.float32(deviation) * rng.standard_normal(tuple(p.shape), dtype=np.float32)
        p.data.copy_(torch.from_numpy(values))


def make(B, T, L, NH, C, V, context, ignored, steps, seed, lr, max_norm, out):
    rng = np.random.default_rng(seed)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=V, n_positions=context, n_embd=C, n_layer=L, n_head=NH, resid_pdrop=0.0, embd_pdrop=0.0,
        attn_pdrop=0.0, bos_token_id=None, eos_token_id=None, attn_implementation="eager")).double().eval()
    draw_parameters(model, C, rng)

    text = rng.integers(0, V, (B, T + 1))
    tokens, targets = text[:, :-1].astype(np.int32), text[:, 1:].astype(np.int32)
    targets.flat[rng.choice(B * T, ignored, replace=False)] = -1
    x, y = torch.from_numpy(tokens).long(), torch.from_numpy(targets).long()

    # Hyperparameters rounded to f32, as the trainer holds them: 1 - 0.999f is off by 1e-5 otherwise.
    hyper = {name: float(np.float32(value)) for name, value in
             dict(lr=lr, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1, max_norm=max_norm).items()}
    groups = [{"params": [p for p in model.parameters() if p.dim() >= 2], "weight_decay": hyper["weight_decay"]},
              {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=hyper["lr"], betas=(hyper["beta1"], hyper["beta2"]), eps=hyper["eps"])

    weights = {name: p.detach().numpy().astype(np.float32) for name, p in model.named_parameters()}
    assert "lm_head.weight" not in weights, "the head is tied to the token table"
    save_file(weights, f"{out.removesuffix('.safetensors')}.model.safetensors", metadata={"format": "pt"})
    tensors, losses, norms = {}, [], []
    for step in range(steps):
        logits = model(x, use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.view(-1, V), y.view(-1), ignore_index=-1)
        optimizer.zero_grad()
        loss.backward()
        norm = torch.sqrt(sum((p.grad**2).sum() for p in model.parameters())).item()
        if step == 0:
            tensors["logits"] = logits.detach().numpy()
            tensors.update({"grad." + name: p.grad.numpy().astype(np.float32) for name, p in model.named_parameters()})
        for p in model.parameters():
            p.grad *= min(1.0, hyper["max_norm"] / norm)        # torch's clip_grad_norm_ adds 1e-6 to the norm
        optimizer.step()
        losses.append(loss.item())
        norms.append(norm)
        print(f"step {step + 1:2d}  loss {losses[-1]:.9f}  norm {norms[-1]:.6f}")

    tensors.update(tokens=tokens, targets=targets, loss=np.array(losses[:1]), losses=np.array(losses),
                   norms=np.array(norms))
    metadata = {"B": B, "T": T, "L": L, "NH": NH, "C": C, "V": V, "context": context, "steps": steps, **hyper,
                "torch": torch.__version__, "transformers": transformers.__version__}
    save_file(tensors, out, metadata={key: str(value) for key, value in metadata.items()})
    print(f"{out}: {sum(t.nbytes for t in [*weights.values(), *tensors.values()]) / 1e6:.2f} MB with its model")


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--size", choices=SIZES, help="which one; without it plain and awkward are written")
parser.add_argument("--out", help="file to write; test/reference/SIZE.safetensors without it")
args = parser.parse_args()
if args.out and not args.size:
    sys.exit("make_reference: --out needs --size: which of " + ", ".join(SIZES))
for size in [args.size] if args.size else ["plain", "awkward"]:
    make(**SIZES[size], out=args.out or f"test/reference/{size}.safetensors")
