#!/usr/bin/env python3
"""Trains GPT-2 in plain PyTorch as train_gpt does: same weights, same sequences in the same order, same learning rates,
same log.csv. Two curves of one command differ by rounding alone.

    ./train_gpt --data book.txt --out runs/start --steps 0                        the initial weights
    ./train_gpt --data book.txt --out runs/ours
    ./train_gpt --data book.txt --perturb --out runs/twin                         the same, moved by one ulp
    scripts/train_reference.py --config runs/ours/settings.txt --init runs/start --out runs/torch
    scripts/compare_curves.sh --twin runs/twin runs/ours runs/torch

Options and defaults are those of train_gpt; the model sizes come from the checkpoint. It has no dropout: masks of
train_gpt's own are not drawn here."""
import argparse
import glob
import json
import math
import os
import re
import shlex
import sys
import time
from functools import lru_cache

try:
    import numpy as np
    import torch
    import torch.nn as nn
    import torch.nn.functional as F
except ImportError as error:
    sys.exit(f"train_reference: {error}; pip install torch numpy")

# ---- Stateless random numbers, as in llmc/base/random.c

PHASE, SHUFFLE = 3, 2                   # RandomPurpose
M32, M64 = 2**32 - 1, 2**64 - 1


def draw(seed, purpose, number, step, position):
    """Philox4x32-10; the low 64 of its 128 bits."""
    c0, c1, c2, c3 = position & M32, position >> 32, step & M32, purpose | number << 8
    k0, k1 = seed & M32, seed >> 32
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = p1 >> 32 ^ c1 ^ k0, p1 & M32, p0 >> 32 ^ c3 ^ k1, p0 & M32
        k0, k1 = k0 + 0x9E3779B9 & M32, k1 + 0xBB67AE85 & M32
    return c0 | c1 << 32


def below(seed, purpose, step, position, n):
    number = 0
    while True:
        product = draw(seed, purpose, number, step, position) * n
        if product & M64 >= 2**64 % n:
            return product >> 64
        number += 1


def permute(seed, purpose, step, index, n):
    a = math.ceil(math.sqrt(n))
    b = -(-n // a)
    while True:
        left, right = divmod(index, b)
        for number in range(8):
            if number % 2:
                right = (right + (draw(seed, purpose, number, step, left) * b >> 64)) % b
            else:
                left = (left + (draw(seed, purpose, number, step, right) * a >> 64)) % a
        index = left * b + right
        if index < n:
            return index


# ---- Data, as llmc/tokens/dataloader.c reads it

class Tokens:
    """Text files or token shards as one stream; first and count select a part."""

    def __init__(self, pattern):
        names = [pattern] if os.path.exists(pattern) else sorted(glob.glob(pattern), key=os.fsencode)
        if not names:
            sys.exit(f"train_reference: {pattern}: no such file")
        files = [self.open(name) for name in names]
        self.data = files[0] if len(files) == 1 else np.concatenate(files)
        self.are_bytes = self.data.dtype == np.uint8

    @staticmethod
    def open(name):
        header = np.fromfile(name, "<u4", 256)
        types = {20240520: "<u2", 20240801: "<u4"}
        if len(header) and header[0] in types:
            return np.memmap(name, types[header[0]], "r", 1024, (int(header[2]),))
        if name.endswith(".bin"):
            sys.exit(f"train_reference: {name}: not a token shard")
        return np.memmap(name, np.uint8, "r")

    def part(self, first, end):
        part = object.__new__(Tokens)
        part.data, part.are_bytes = self.data[first:end], self.are_bytes
        return part

    def windows(self, T):
        return -(-(len(self.data) - 1) // T)

    def ring_window(self, start, w, T):
        """Targets from start + w T on, cyclic, each with its input; -1 after the end of the last window."""
        targets = len(self.data) - 1
        count = min(T, targets - w * T)
        places = (start + w * T + np.arange(count)) % targets
        x, y = np.zeros(T, np.int64), np.full(T, -1, np.int64)
        x[:count], y[:count] = self.data[places], self.data[places + 1]
        return x, y

    def train_window(self, seed, g, T):
        epoch, index = divmod(g, self.windows(T))
        return self.ring_window(self.phase(seed, epoch), permute(seed, SHUFFLE, epoch, index, self.windows(T)), T)

    @lru_cache(maxsize=4)
    def phase(self, seed, epoch):
        return below(seed, PHASE, epoch, 0, len(self.data) - 1)


def to_batch(windows, device):
    x, y = (torch.from_numpy(np.stack(side)) for side in zip(*windows))
    return x.to(device), y.to(device)


# ---- The model, with HuggingFace's parameter names

class Block(nn.Module):
    def __init__(self, C, NH, naive):
        super().__init__()
        self.NH, self.naive = NH, naive
        self.ln_1, self.ln_2 = nn.LayerNorm(C), nn.LayerNorm(C)
        self.attn = nn.ModuleDict({"c_attn": nn.Linear(C, 3 * C), "c_proj": nn.Linear(C, C)})
        self.mlp = nn.ModuleDict({"c_fc": nn.Linear(C, 4 * C), "c_proj": nn.Linear(4 * C, C)})

    def attention(self, x):
        B, T, C = x.shape
        q, k, v = (part.view(B, T, self.NH, C // self.NH).transpose(1, 2) for part in self.attn.c_attn(x).split(C, 2))
        if self.naive:
            scores = q @ k.transpose(2, 3) / math.sqrt(C // self.NH)
            future = torch.ones(T, T, dtype=torch.bool, device=x.device).triu(1)
            y = scores.masked_fill(future, -math.inf).softmax(3) @ v
        else:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.attn.c_proj(y.transpose(1, 2).reshape(B, T, C))

    def forward(self, x):
        x = x + self.attention(self.ln_1(x))
        return x + self.mlp.c_proj(F.gelu(self.mlp.c_fc(self.ln_2(x)), approximate="tanh"))


class GPT(nn.Module):
    def __init__(self, L, NH, C, T, V, naive=False):
        super().__init__()
        self.transformer = nn.ModuleDict({
            "wte": nn.Embedding(V, C), "wpe": nn.Embedding(T, C),
            "h": nn.ModuleList(Block(C, NH, naive) for _ in range(L)), "ln_f": nn.LayerNorm(C)})

    def forward(self, tokens, targets):
        """The sum of the losses."""
        t = self.transformer
        x = t.wte(tokens) + t.wpe.weight[:tokens.shape[1]]
        for block in t.h:
            x = block(x)
        logits = F.linear(t.ln_f(x), t.wte.weight)
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), ignore_index=-1, reduction="sum")


def find_checkpoint(path):
    directory = path if os.path.isdir(path) else os.path.dirname(path) or "."
    if not os.path.exists(f"{directory}/config.json"):
        steps = [name for name in os.listdir(directory) if re.fullmatch(r"step-\d+", name)]      # no .partial, no .old
        directory = os.path.join(directory, max(steps, key=lambda name: int(name[5:]), default=""))
    if not os.path.exists(f"{directory}/config.json"):
        sys.exit(f"train_reference: --init {path}: no checkpoint, want config.json and model.safetensors in it")
    return directory


def read_weights(directory):
    """The header of the file, and all weights."""
    with open(f"{directory}/model.safetensors", "rb") as file:
        header = file.read(int.from_bytes(file.read(8), "little"))
        tensors = {name: entry for name, entry in json.loads(header).items() if name != "__metadata__"}
        other = {entry["dtype"] for entry in tensors.values()} - {"F32"}
        if other:
            sys.exit(f"train_reference: {directory}: weights in {other.pop()}, want F32")
        return tensors, file.read()


def make_directory(path):
    try:
        os.makedirs(path)
    except OSError as error:
        sys.exit(f"train_reference: {path}: {error.strerror}")


def load_model(directory):
    with open(f"{directory}/config.json") as file:
        config = json.load(file)
    model = GPT(*(config[key] for key in ("n_layer", "n_head", "n_embd", "n_positions", "vocab_size")))
    tensors, data = read_weights(directory)
    for name, p in model.named_parameters():
        entry = tensors[name if name in tensors else name.removeprefix("transformer.")]
        value = torch.tensor(np.frombuffer(data[slice(*entry["data_offsets"])], "<f4").reshape(entry["shape"]))
        is_conv1d = ".c_" in name and value.ndim == 2       # (in, out) in the file, (out, in) in a Linear
        p.data.copy_(value.t() if is_conv1d else value)
    return model, config["n_positions"]


# ---- Training

def learning_rate(a, step):
    """llmc/train/schedule.c"""
    if step >= a.steps:
        return a.min_lr
    if step < a.warmup:
        return a.lr * (step + 1) / (a.warmup + 1)
    decay, fall = a.decay or a.steps // 5, a.warmup
    if a.schedule == "wsd" and decay < a.steps - a.warmup:
        fall = a.steps - decay
    if step < fall:
        return a.lr
    done = (step - fall) / (a.steps - fall)
    return a.min_lr + (0.5 * (1 + math.cos(math.pi * done)) if a.schedule == "cosine" else 1 - done) * (a.lr - a.min_lr)


def newton_schulz(x, dtype):
    """kernels/muon.h"""
    y = x.T if x.shape[0] > x.shape[1] else x
    y = (y / (x.norm() + 1e-7)).to(dtype)
    for _ in range(5):
        gram = y @ y.T
        y = 3.4445 * y + (-4.7750 * gram + 2.0315 * gram @ gram) @ y
    return y.T.to(x.dtype) if x.shape[0] > x.shape[1] else y.to(x.dtype)


class Muon(torch.optim.Optimizer):
    """c_attn is three matrices."""

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                m = self.state[p].setdefault("momentum_buffer", torch.zeros_like(p))
                m.mul_(0.95).add_(p.grad)
                parts = (p.grad + 0.95 * m).chunk(3 if p.shape[0] == 3 * p.shape[1] else 1)
                update = torch.cat([0.2 * max(part.shape) ** 0.5 * newton_schulz(part, group["dtype"]) for part in parts])
                p.sub_(group["lr"] * (update + group["weight_decay"] * p))


def read_settings(path):
    """The options of a settings.txt as arguments."""
    with open(path) as file:
        lines = [line.split(" = ", 1) for line in file if " = " in line and not line.startswith("#")]
    settings = {name: value.strip().strip("\"'") for name, value in lines}
    for name, value in settings.items():
        if "dropout" in name and float(value):
            sys.exit(f"train_reference: {path}: {name} {value}: want 0, the masks are train_gpt's own")
    return [f"--{name}={value}" for name, value in settings.items()]


def parse():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
                                allow_abbrev=False)
    p.add_argument("--config", help="settings.txt of a run of train_gpt: its options as defaults")
    p.add_argument("--data", help="a text, or token shards: 'dir/train_*.bin'")
    p.add_argument("--init", required=True, help="checkpoint: a directory, or the model.safetensors in it")
    p.add_argument("--out", required=True, help="directory of log.csv and settings.txt")
    p.add_argument("--val-data")
    for name, value in dict(val_fraction=0.1, lr=1e-3, min_lr=None, weight_decay=0.1, beta1=0.9, beta2=0.95, eps=1e-8,
                            clip=1.0).items():
        p.add_argument("--" + name.replace("_", "-"), type=float, default=value)
    for name, value in dict(batch=16, total_batch=0, steps=2000, warmup=100, decay=0, seed=1, threads=0, val_every=250,
                            val_tokens=1048576).items():
        p.add_argument("--" + name.replace("_", "-"), type=int, default=value)
    p.add_argument("--schedule", choices=["cosine", "linear", "wsd", "constant"], default="cosine")
    p.add_argument("--optimizer", choices=["adamw", "muon"], default="adamw")
    p.add_argument("--dtype", choices=["f32", "bf16"], default="f32", help="bf16: autocast; the weights stay f32")
    p.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    a = p.parse_args()
    if a.config:            # values are checked as if they were typed; options that are not here are left out
        a = p.parse_known_args(read_settings(a.config) + sys.argv[1:])[0]
    if not a.data:
        p.error("want --data")
    a.min_lr = a.lr if a.schedule == "constant" else a.lr / 10 if a.min_lr is None else a.min_lr
    return a


def main():
    a = parse()
    if a.threads:
        torch.set_num_threads(a.threads)
    model, T = load_model(find_checkpoint(a.init))
    model.to(a.device)
    train, val = Tokens(a.data), a.val_data and Tokens(a.val_data)
    if not val and train.are_bytes and a.val_fraction > 0:
        kept = int(len(train.data) * (1 - a.val_fraction))
        train, val = train.part(0, kept), train.part(kept, len(train.data))
    batches = a.total_batch // (a.batch * T) if a.total_batch else 1
    if a.total_batch and batches * a.batch * T != a.total_batch:
        sys.exit(f"train_reference: --total-batch {a.total_batch} is not a multiple of --batch x context = {a.batch * T}")

    params = list(model.parameters())
    matrices = [p for p in model.transformer.h.parameters() if p.dim() == 2] if a.optimizer == "muon" else []
    rest = [p for p in params if all(p is not matrix for matrix in matrices)]
    optimizers = [torch.optim.AdamW(
        [{"params": [p for p in rest if p.dim() >= 2], "weight_decay": a.weight_decay},
         {"params": [p for p in rest if p.dim() < 2], "weight_decay": 0.0}],
        betas=(a.beta1, a.beta2), eps=a.eps, fused=True)]
    if matrices:
        dtype = torch.bfloat16 if a.device == "cuda" else torch.float32
        optimizers.append(Muon(matrices, {"lr": a.lr, "weight_decay": a.weight_decay, "dtype": dtype}))
    precision = torch.autocast(a.device, torch.bfloat16, enabled=a.dtype == "bf16")

    @torch.no_grad()
    def validate():
        count = min(val.windows(T), -(-a.val_tokens // T) if a.val_tokens else val.windows(T))
        loss = targets = 0
        for first in range(0, count, a.batch):
            x, y = to_batch([val.ring_window(0, w, T) for w in range(first, min(first + a.batch, count))], a.device)
            with precision:
                loss += model(x, y).item()
            targets += (y >= 0).sum().item()
        return loss / targets

    def train_step(micro_batches, rate):
        count = sum(int((y >= 0).sum()) for windows in micro_batches for _, y in windows)
        loss = torch.zeros((), dtype=torch.float64, device=a.device)
        model.zero_grad(set_to_none=True)
        for windows in micro_batches:
            x, y = to_batch(windows, a.device)
            with precision:
                part = model(x, y) / count
            part.backward()
            loss += part.detach()
        grads = [p.grad for p in params]
        norm = torch.stack(torch._foreach_norm(grads)).norm()
        if a.clip > 0:
            torch._foreach_mul_(grads, (a.clip / norm).clamp(max=1.0))
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()
        return loss.item(), norm.item(), count              # waits for the device

    name = torch.cuda.get_device_name() if a.device == "cuda" else f"{torch.get_num_threads()} threads"
    make_directory(a.out)
    with open(f"{a.out}/settings.txt", "w") as file:
        file.write(f"# train_reference, PyTorch {torch.__version__}, {a.device}, {name}, "
                   f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())}\n# command: {shlex.join(sys.argv)}\n"
                   + "".join(f"{key} = {value}\n" for key, value in vars(a).items() if value is not None))
    with open(f"{a.out}/log.csv", "w") as log:
        log.write(f"step,seconds,tokens,loss,{'val_loss,' if val else ''}norm,lr,ms,tokens_per_s\n")
        began = time.perf_counter()
        sample = tokens = 0
        for step in range(a.steps):
            # Python computes the data order slowly: excluded from the timing.
            micro_batches = [[train.train_window(a.seed, sample + i * a.batch + b, T) for b in range(a.batch)]
                             for i in range(batches)]
            sample += batches * a.batch
            rate = learning_rate(a, step)
            if a.device == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
            loss, norm, count = train_step(micro_batches, rate)
            if a.device == "cuda":
                torch.cuda.synchronize()
            seconds = time.perf_counter() - start
            tokens += count
            if not math.isfinite(loss + norm):
                sys.exit(f"train_reference: step {step + 1}: loss {loss}, norm {norm}")
            last = step + 1 == a.steps
            val_loss = f"{validate():.9g}" if val and (last or a.val_every and (step + 1) % a.val_every == 0) else ""
            log.write(f"{step + 1},{time.perf_counter() - began:.3f},{tokens},{loss:.9g},"
                      f"{val_loss + ',' if val else ''}{norm:.9g},{rate:.9g},"
                      f"{1e3 * seconds:.3f},{count / seconds:.1f}\n")
            log.flush()
            print(f"step {step + 1}/{a.steps}  loss {loss:.4f}  {'val ' + val_loss + '  ' if val_loss else ''}"
                  f"norm {norm:.2f}  lr {rate:.1e}  {1e3 * seconds:.1f} ms", flush=True)
    if a.device == "cuda":
        with open(f"{a.out}/settings.txt", "a") as file:
            file.write(f"# memory: {torch.cuda.max_memory_allocated() / 2**30:.2f} GiB\n")


if __name__ == "__main__":
    main()
