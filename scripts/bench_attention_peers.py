#!/usr/bin/env python3
"""The PyTorch side of test/bench/bench_attention.c, which starts it: causal attention in bf16 of cuDNN, FlashAttention-2 and,
where their packages flash_attn_interface and flash_attn.cute are installed, FlashAttention-3 and -4.

    bench_attention_peers.py FILE SOCKET DTYPE      FILE and SOCKET are open file descriptors

One reply line per request line: "ok ..." or an error. On start: "ok", versions and names. Requests:

    inputs NH HS ROWS       FILE holds qkv (ROWS,3*NH*HS) and dout (ROWS,NH*HS), which are copied to the GPU
    shape NAME B T          runs NAME on the first B*T rows: "ok", peak memory in bytes (inputs and outputs included),
                            the means of |out| and of |dq, dk, dv| over the first sequence
    time NAME PASS MS       milliseconds per launch, over a batch of about MS milliseconds

Both passes are called as autograd calls them, on views of the packed qkv, so that only the library's own work is timed.
"""
import importlib
import mmap
import socket
import sys

WIRE = socket.socket(fileno=int(sys.argv[2])).makefile("rw")


def say(*words):
    print(" ".join(" ".join(str(word).split()) for word in words)[:500], file=WIRE, flush=True)


def installed(module):
    try:
        return importlib.import_module(module)
    except ImportError:
        return None


def leave(reason):
    say(reason)
    sys.exit()


if sys.argv[3] != "bf16":
    leave("cuDNN and FlashAttention-2 need a GPU and bf16")
try:
    import torch
except ImportError as error:
    leave(f"{sys.executable}: {error}")
if not torch.cuda.is_available():
    leave(f"PyTorch {torch.__version__} finds no GPU")
fa3, fa4 = installed("flash_attn_interface"), installed("flash_attn.cute.interface")

ATEN = torch.ops.aten
OPERATORS = {
    "cuDNN": (ATEN._scaled_dot_product_cudnn_attention, ATEN._scaled_dot_product_cudnn_attention_backward),
    "FA2": (ATEN._scaled_dot_product_flash_attention, ATEN._scaled_dot_product_flash_attention_backward),
}
# what the forward operators return, under the names that the backward operators take it
RESULTS = ("out", "logsumexp", "cum_seq_q", "cum_seq_k", "max_q", "max_k", "philox_seed", "philox_offset")


def call(operator, values):
    return operator.default(**{a.name: values[a.name] for a in operator.default._schema.arguments})


class Direct:
    def __init__(self, name, B, T):
        self.forward_operator, self.backward_operator = OPERATORS[name]
        query, key, value = QKV[:B * T].view(B, T, 3, *SIZES).permute(2, 0, 3, 1, 4)       # (B,NH,T,HS) each
        self.values = dict(query=query, key=key, value=value, attn_bias=None, compute_log_sumexp=True, dropout_p=0.0,
                           is_causal=True, return_debug_mask=False, scale=SIZES[1]**-0.5,
                           grad_out=DOUT[:B * T].view(B, T, *SIZES).transpose(1, 2))

    def forward(self):
        self.values.update(zip(RESULTS, call(self.forward_operator, self.values)))
        return self.values["out"]

    def backward(self):
        return call(self.backward_operator, self.values)


class DirectFA3:
    def __init__(self, name, B, T):
        self.qkv = QKV[:B * T].view(B, T, 3, *SIZES).unbind(2)                              # (B,T,NH,HS) each
        self.dqkv = torch.empty_like(QKV[:B * T]).view(B, T, 3, *SIZES).unbind(2)
        self.dout = DOUT[:B * T].view(B, T, *SIZES)
        self.options = dict(zip(("dq", "dk", "dv"), self.dqkv), softmax_scale=SIZES[1]**-0.5)

    def forward(self):
        self.out, self.lse, *_ = fa3._flash_attn_forward(*self.qkv, softmax_scale=SIZES[1]**-0.5, causal=True)
        return self.out

    def backward(self):
        fa3._flash_attn_backward(self.dout, *self.qkv, self.out, self.lse, **self.options, is_causal=True)
        return self.dqkv


class DirectFA4(DirectFA3):
    def forward(self):
        self.out, self.lse, *_ = fa4._flash_attn_fwd(*self.qkv, softmax_scale=SIZES[1]**-0.5, causal=True, return_lse=True)
        return self.out

    def backward(self):
        fa4._flash_attn_bwd(*self.qkv, self.out, self.dout, self.lse, **self.options, causal=True)
        return self.dqkv


def inputs(NH, HS, rows):
    global SIZES, QKV, DOUT
    PEERS.clear()
    QKV = DOUT = None
    SIZES, C = (int(NH), int(HS)), int(NH) * int(HS)
    with mmap.mmap(int(sys.argv[1]), 0) as file:
        data = torch.frombuffer(file, dtype=torch.bfloat16).cuda().view(-1, C)
    QKV, DOUT = data[:3 * int(rows)].view(-1, 3 * C), data[3 * int(rows):]
    return ()


def shape(name, B, T):
    PEERS.pop(name, None)
    size = int(B), int(T)
    method = {"FA3": DirectFA3, "FA4": DirectFA4}.get(name, Direct)
    first = method(name, *size)                     # plans are made, scratch is taken for good
    first.forward(), first.backward()
    del first
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    peer = method(name, *size)
    out, gradients = peer.forward(), peer.backward()
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated() - before + 4 * out.nbytes        # and q, k, v, dout
    PEERS[name], LAUNCH_MS[name, "forward"], LAUNCH_MS[name, "backward"] = peer, 0, 0
    gradient = torch.cat([g[0].flatten() for g in gradients])
    return peak, out[0].float().abs().mean().item(), gradient.float().abs().mean().item()


def time(name, which, ms):
    launch = getattr(PEERS[name], which)

    def batch(launches):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        launch()                                    # not counted: until now the GPU was another process's
        start.record()
        for _ in range(launches):
            launch()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / launches

    if not LAUNCH_MS[name, which]:
        LAUNCH_MS[name, which] = batch(1)
    return (batch(max(1, int(float(ms) / LAUNCH_MS[name, which]))),)


PEERS, LAUNCH_MS = {}, {}
COMMANDS = {"inputs": inputs, "shape": shape, "time": time}
with torch.no_grad():
    say(f"ok PyTorch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}, FA2{', FA3' if fa3 else ''}"
        f"{', FA4' if fa4 else ''}; both passes called directly")
    for line in WIRE:
        command, *words = line.split()
        try:
            say("ok", *COMMANDS[command](*words))
        except Exception as error:
            say(type(error).__name__, error)
