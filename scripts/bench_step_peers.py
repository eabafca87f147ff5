#!/usr/bin/env python3
"""One training step of train_gpt, llm.c, nanoGPT and HuggingFace's GPT-2 on one GPU: speed, memory, power, clock.

    scripts/bench_step_peers.py --data 'data/train_*.bin' --llmc llm.c/train_gpt2cu --nanogpt nanoGPT --table step.md

One process per measurement; every round measures all programs in turn, because a warm card lowers its clock. All train
the same model in bf16 on the same tokens: one micro-batch per update, norm clipped to 1, AdamW, no dropout. A program
without its argument, or that fails, is left out. Memory: the most that NVML reports as used during the run, minus what
was used before; with PyTorch it includes what its allocator caches. Needs nvidia-ml-py, and torch, transformers for the
last two programs. --cpu checks the script without a GPU, in f32."""
import argparse
import csv
import glob
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time

MODELS = {"d2": (2, 2, 128), "d12": (12, 12, 768), "d24": (24, 16, 1024), "d36": (36, 20, 1280), "d48": (48, 25, 1600)}
HUGGINGFACE = {"HuggingFace, eager attention": ("eager", False), "HuggingFace, sdpa": ("sdpa", False),
               "HuggingFace, sdpa, torch.compile": ("sdpa", True)}
NANOGPT = "nanoGPT, torch.compile"
LR, WEIGHT_DECAY, BETAS = 3e-4, 0.1, (0.9, 0.95)
TIMEOUT_S = 300
GIB = 2**30


# ---- The side of PyTorch, a process of its own

def read_batches(pattern, B, T, device):
    """Consecutive windows of the first shard, copied as nanoGPT's train.py does."""
    import numpy as np
    import torch
    tokens = np.memmap(sorted(glob.glob(pattern))[0], "<u2", "r", 1024)
    first = 0
    while True:
        if first + B * T + 1 > len(tokens):
            first = 0
        window = torch.from_numpy(tokens[first:first + B * T + 1].astype(np.int64))
        first += B * T
        pair = window[:-1].view(B, T), window[1:].view(B, T)
        if device == "cuda":
            pair = (side.pin_memory().to(device, non_blocking=True) for side in pair)
        yield tuple(pair)


def make_nanogpt(a, size):
    sys.path.insert(0, a.nanogpt)
    from model import GPT, GPTConfig
    L, NH, C = size
    model = GPT(GPTConfig(n_layer=L, n_head=NH, n_embd=C, block_size=a.context, vocab_size=50304)).to(a.device)
    optimizer = model.configure_optimizers(WEIGHT_DECAY, LR, BETAS, a.device)
    return model, optimizer, lambda compiled, x, y: compiled(x, y)[1]


def make_huggingface(a, size, attention):
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel
    L, NH, C = size
    model = GPT2LMHeadModel(GPT2Config(
        n_layer=L, n_head=NH, n_embd=C, n_positions=a.context, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0,
        use_cache=False, attn_implementation=attention)).to(a.device)
    params = list(model.parameters())
    optimizer = torch.optim.AdamW(
        [{"params": [p for p in params if p.dim() >= 2], "weight_decay": WEIGHT_DECAY},
         {"params": [p for p in params if p.dim() < 2], "weight_decay": 0.0}], lr=LR, betas=BETAS, fused=True)
    return model, optimizer, lambda compiled, x, y: compiled(input_ids=x, labels=x).loss


def work(a):
    import torch
    import transformers
    default = transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=1, n_head=1, n_embd=8))
    print(f"versions: PyTorch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}, transformers "
          f"{transformers.__version__} (its default attention: {default.config._attn_implementation})", flush=True)
    a.device = "cpu" if a.cpu else "cuda"
    torch.manual_seed(1)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    if a.worker == NANOGPT:
        model, optimizer, loss_of = make_nanogpt(a, MODELS[a.model])
        compiled = torch.compile(model)
    else:
        attention, is_compiled = HUGGINGFACE[a.worker]
        model, optimizer, loss_of = make_huggingface(a, MODELS[a.model], attention)
        compiled = torch.compile(model) if is_compiled else model
    model.train()
    batches = read_batches(a.data, a.batch[0], a.context, a.device)
    x, y = next(batches)
    for step in range(1, a.warmup + a.steps + 1):
        start = time.perf_counter()
        with torch.autocast(a.device, torch.bfloat16, enabled=not a.cpu):
            loss = loss_of(compiled, x, y)
        x, y = next(batches)                        # while the GPU computes
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss = loss.item()                          # waits for the GPU
        ms = 1e3 * (time.perf_counter() - start)
        print(f"step {step}/{a.warmup + a.steps} loss {loss:.4f} {ms:.3f} ms", flush=True)
    if not a.cpu:
        print(f"allocated: {torch.cuda.max_memory_allocated() / GIB:.1f} GiB by PyTorch's own count", flush=True)


# ---- Measurements

class Sampler(threading.Thread):
    """Samples (time, used bytes, watts, MHz) of the first GPU until stop()."""

    def __init__(self):
        super().__init__(daemon=True)
        self.samples, self.done = [], threading.Event()
        self.before = 0 if NVML is None else NVML.nvmlDeviceGetMemoryInfo(GPU).used
        self.start()

    def run(self):
        while NVML and not self.done.wait(0.02):
            self.samples.append((time.monotonic(), NVML.nvmlDeviceGetMemoryInfo(GPU).used,
                                 NVML.nvmlDeviceGetPowerUsage(GPU) / 1e3,
                                 NVML.nvmlDeviceGetClockInfo(GPU, NVML.NVML_CLOCK_SM)))

    def stop(self):
        self.done.set()
        self.join()

    def peak_memory(self):
        return max((s[1] for s in self.samples), default=self.before) - self.before

    def means(self, start, end):
        """Of watts and MHz."""
        window = [s for s in self.samples if start <= s[0] <= end]
        return [statistics.fmean(s[i] for s in window) if window else float("nan") for i in (2, 3)]


def command_of(program, a, B, directory):
    steps = a.warmup + a.steps
    if program == "train_gpt":
        return [a.train_gpt, "--data", a.data, "--out", f"{directory}/run", "--model", a.model, "--context", a.context,
                "--batch", B, "--steps", steps, "--dtype", "f32" if a.cpu else "bf16", "--lr", LR, "--min-lr", LR,
                "--warmup", 0, "--weight-decay", WEIGHT_DECAY, "--save-every", 0, "--val-every", 0]
    if program == "llm.c":
        return ["stdbuf", "-oL", a.llmc, "-i", a.data, "-j", a.data, "-e", a.model, "-b", B, "-t", a.context, "-d",
                B * a.context, "-x", steps, "-l", LR, "-c", WEIGHT_DECAY, "-v", steps + 1, "-m", 1, "-s", 0, "-r", 0,
                "-pi", "fs", "-pf", directory, "-pn", 1, "-pr", 0, "-pg", 1]
    return [sys.executable, __file__, "--worker", program, "--data", a.data, "--model", a.model, "--batch", B,
            "--context", a.context, "--steps", a.steps, "--warmup", a.warmup] + \
        (["--nanogpt", a.nanogpt] if a.nanogpt else []) + (["--cpu"] if a.cpu else [])


def read_log(path):
    """Milliseconds and losses of the steps in a log.csv."""
    with open(path) as file:
        rows = list(csv.DictReader(file))
    return [float(row["ms"]) for row in rows], [row["loss"] for row in rows]


def measure(program, a, B):
    """A dictionary of results; RuntimeError says what failed."""
    ms, losses, notes, last_line, step_1, last_step = [], [], [], "", None, None
    with tempfile.TemporaryDirectory() as directory:
        command = [str(word) for word in command_of(program, a, B, directory)]
        sampler, start = Sampler(), time.monotonic()
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                   errors="replace")
        timer = threading.Timer(TIMEOUT_S, process.kill)
        timer.start()
        for line in process.stdout:
            now = time.monotonic()
            if step := re.match(r"step +(\d+)/\d+ .*?\bloss +(\S+) .*?([\d.]+) ms", line):
                step_1, last_step = step_1 or now, now
                losses.append(step[2])
                ms.append(float(step[3]))
            elif line.startswith(("versions: ", "allocated: ")):
                notes.append(line.strip())
            last_line = line.strip() or last_line
        process.wait()
        timer.cancel()
        sampler.stop()
        if process.returncode:
            raise RuntimeError(f"exit code {process.returncode}: {last_line}")
        if program == "train_gpt":                  # which does not print every step
            ms, losses = read_log(f"{directory}/run/log.csv")
    if len(ms) != a.warmup + a.steps or not step_1:
        raise RuntimeError(f"output: got {len(ms)} steps, want {a.warmup + a.steps} and a line of step 1: {last_line}")
    watts, mhz = sampler.means(step_1 + sum(ms[1:a.warmup]) / 1e3, last_step)
    return dict(ms=ms[a.warmup:], memory=sampler.peak_memory(), watts=watts, mhz=mhz, first_s=step_1 - start,
                wall_ms=1e3 * (last_step - step_1) / (len(ms) - 1), loss=losses[-1], notes=notes)


# ---- The table

def row_of(a, B, program, results, ours_ms):
    tokens = B * a.context
    rounds = [statistics.median(r["ms"]) for r in results]
    ms = statistics.median(value for r in results for value in r["ms"])
    mean = {key: statistics.fmean(r[key] for r in results) for key in ("watts", "mhz")}
    return (f"| {B} | {program} | {tokens / ms:.1f} k | {', '.join(f'{tokens / m:.1f}' for m in rounds)} | {ms:.1f} | "
            f"{ms / ours_ms:.2f} | {max(r['memory'] for r in results) / GIB:.1f} GiB | {mean['watts']:.0f} W | "
            f"{mean['mhz']:.0f} MHz | {results[0]['first_s']:.1f} s |")


def table_of(a, results, failures, versions):
    lines = ["| batch | program | tokens/s | per round | ms per step | train_gpt is faster by | memory | power | clock "
             "| start to the end of step 1 |", "| --- " * 10 + "|"]
    for (B, program), measured in results.items():
        ours = results.get((B, "train_gpt"))
        ours_ms = statistics.median(value for r in ours for value in r["ms"]) if ours else float("nan")
        lines.append(row_of(a, B, program, measured, ours_ms))
    lines += [f"| {B} | {program} | {reason} |" + " |" * 7 for (B, program), reason in failures.items()]
    lines += ["", f"{a.model}, T {a.context}, medians of {a.steps} steps after {a.warmup}; rounds in turn: {a.rounds}; "
              "the last column is of the first round.", *versions, a.note]
    return "\n".join(lines).rstrip() + "\n"


def parse():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--data", required=True, help="token shards (GPT-2 tokens, uint16): 'dir/train_*.bin'")
    p.add_argument("--train-gpt", default="./train_gpt", help="our program (default ./train_gpt)")
    p.add_argument("--llmc", help="llm.c's train_gpt2cu")
    p.add_argument("--nanogpt", help="a checkout of nanoGPT")
    p.add_argument("--no-huggingface", action="store_true")
    p.add_argument("--model", choices=MODELS, default="d12")
    p.add_argument("--batch", type=int, nargs="+", default=[64, 16], help="sequences per step (default 64 16)")
    for name, value in dict(context=1024, steps=50, warmup=10, rounds=2).items():
        p.add_argument("--" + name, type=int, default=value, help=f"(default {value})")
    p.add_argument("--table", help="file to write the table to")
    p.add_argument("--note", default="", help="a line to print below the table, such as the commits of the programs")
    p.add_argument("--cpu", action="store_true", help="check the script without a GPU")
    p.add_argument("--worker", help=argparse.SUPPRESS)
    return p.parse_args()


def open_nvml():
    try:
        import pynvml
        pynvml.nvmlInit()
    except Exception as error:
        sys.exit(f"bench_step_peers: NVML: {error}; pip install nvidia-ml-py, or --cpu to check the script")
    return pynvml, pynvml.nvmlDeviceGetHandleByIndex(0)


def check_files(a):
    for option, path in {"--train-gpt": a.train_gpt, "--llmc": a.llmc,
                         "--nanogpt": a.nanogpt and os.path.join(a.nanogpt, "model.py")}.items():
        if path and not os.path.exists(path):
            sys.exit(f"bench_step_peers: {option}: {path}: no such file; build it, or give another path")
    if not glob.glob(a.data):
        sys.exit(f"bench_step_peers: --data {a.data}: no such file")


def main(a):
    check_files(a)
    programs = ["train_gpt"] + ["llm.c"] * bool(a.llmc) + [NANOGPT] * bool(a.nanogpt)
    programs += [] if a.no_huggingface else HUGGINGFACE
    versions = {f"{NVML.nvmlDeviceGetName(GPU)}, driver {NVML.nvmlSystemGetDriverVersion()}": None} if NVML else {}
    results, failures = {}, {}
    for B in a.batch:
        for number in range(1, a.rounds + 1):
            for program in programs:
                if (B, program) in failures:
                    continue
                try:
                    r = measure(program, a, B)
                    results.setdefault((B, program), []).append(r)
                    versions.update((note[10:], None) for note in r["notes"] if note.startswith("versions: "))
                    text = (f"{B * a.context / statistics.median(r['ms']):.1f} k tokens/s, from outside "
                            f"{B * a.context / r['wall_ms']:.1f} k, steps {min(r['ms']):.1f} to {max(r['ms']):.1f} ms, "
                            f"{r['memory'] / GIB:.1f} GiB, {r['watts']:.0f} W, {r['mhz']:.0f} MHz, step 1 after "
                            f"{r['first_s']:.1f} s, last loss {r['loss']}; {'; '.join(r['notes'][1:])}")
                except (RuntimeError, OSError) as error:
                    text = f"failed: {error}"
                    failures[B, program] = "out of memory" if "out of memory" in text.lower() else text[:100]
                    results.pop((B, program), None)
                print(f"{time.strftime('%T')} B {B}, round {number}, {program}: {text[:400]}", flush=True)
                if a.table:
                    with open(a.table, "w") as file:
                        file.write(table_of(a, results, failures, versions))
    print("\n" + table_of(a, results, failures, versions), end="")


ARGUMENTS = parse()
if ARGUMENTS.worker:
    work(ARGUMENTS)
else:
    NVML, GPU = (None, None) if ARGUMENTS.cpu else open_nvml()
    main(ARGUMENTS)
