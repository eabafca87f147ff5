#!/bin/sh
# plot_attention.sh BENCH.csv [PANELS [NAMES [HEAD_SIZE]]] > attention.svg - Draws what `bench_attention --csv
# BENCH.csv` measured, over the sequence length T.
#   PANELS     one or two of forward, backward, both (TFLOP/s of that pass, or of both together) and memory (GB);
#              default forward,backward. Of the training step, which `CSV=BENCH.csv scripts/bench_step.sh` measured:
#              speed (1000 tokens/s) and memory (GiB)
#   NAMES      the attentions, in this order, each NAME or NAME=LABEL; default: all of the file
#   HEAD_SIZE  default: the first of the file
#
#     scripts/plot_attention.sh bench.csv forward,backward flash=train_gpt,cuDNN,FA2=FlashAttention-2 > attention.svg
#     scripts/plot_attention.sh bench.csv both,memory flash,naive > flash-naive.svg
usage="usage: scripts/plot_attention.sh BENCH.csv [PANELS [NAMES [HEAD_SIZE]]] > attention.svg"
case ${1-} in
--help|-h) sed -n '2,/^usage=/s/^# \{0,1\}//p' "$0"; exit ;;
""|-*) echo "$usage   (--help explains)" >&2; exit 1 ;;
esac
panels=${2:-forward,backward} names=${3-} head_size=${4-}
set -- "$1"
scripts=$(dirname "$0")
. "$scripts/logs.sh"

awk -F, -v script="$script" -v panel_list="$panels" -v name_list="$names" -v head_size="$head_size" \
    "$read_columns $(cat "$scripts/svg.awk")"'
BEGIN {
    title["forward"] = "Forward pass, TFLOP/s"
    title["backward"] = "Backward pass, TFLOP/s"
    title["both"] = "Forward and backward pass, TFLOP/s"
    title["memory"] = "Memory, GB"
    title["speed"] = "Training step, 1000 tokens/s"
    panels = split(panel_list, panel, ",")
    for (p = 1; p <= panels; p++)
        if (!(panel[p] in title)) stop("panel " panel[p] ": want forward, backward, both, speed or memory")
    if (panels > 2) stop("want one or two panels, got " panel_list)
    attentions = split(name_list, name, ",")
    for (c = 1; c <= attentions; c++) {
        label[c] = name[c]
        if (sub(/=.*/, "", name[c])) sub(/[^=]*=/, "", label[c])
        curve_of[name[c]] = c
    }
    all = !attentions
}
FNR == 1 {
    of_steps = "attention" in column && "tokens_per_s" in column
    if (of_steps) { title["memory"] = "Memory, GiB"; want_columns("device dtype model batch T memory_gib", "a table") }
    else want_columns("device dtype head_size heads batch T attention forward_ms backward_ms forward_tflops " \
                      "backward_tflops memory_gb", "a table of bench_attention")
    next
}
head_size == "" { head_size = cell("head_size") }
cell("head_size") != head_size { next }
all && !(cell("attention") in curve_of) {
    attentions++
    name[attentions] = label[attentions] = cell("attention")
    curve_of[name[attentions]] = attentions
}
{
    T = cell("T") + 0
    if (!shortest || T < shortest) shortest = T
    if (T > longest_T) longest_T = T
    device = cell("device")
    setting = cell("dtype") (of_steps ? ", " cell("model") : ", head size " head_size ", " cell("heads") " heads") \
        ", B\303\227T = " cell("batch") * T
}
cell("attention") in curve_of {
    c = curve_of[cell("attention")]
    if (is_number(cell(of_steps ? "ms" : "forward_ms"))) points[c]++
    else if (of_steps) { note[c] = cell("memory_gib"); next }
    ms[1] = cell("forward_ms"); ms[2] = cell("backward_ms")
    value["forward", c, T] = cell("forward_tflops")
    value["backward", c, T] = cell("backward_tflops")
    value["memory", c, T] = cell(of_steps ? "memory_gib" : "memory_gb")
    value["speed", c, T] = of_steps ? cell("tokens_per_s") / 1000 : ""
    value["both", c, T] = ms[1] + ms[2] > 0 ? \
        (cell("forward_tflops") * ms[1] + cell("backward_tflops") * ms[2]) / (ms[1] + ms[2]) : ""
}

function doublings(T,   n) { while ((T /= 2) >= shortest) n++; return n + 0 }

END {
    if (failed) exit 1
    if (!longest_T) stop(head_size == "" ? "no rows" : "no rows with head size " head_size)
    for (c = 1; c <= attentions; c++) if (!points[c]) stop("no rows of " name[c] " at head size " head_size)
    for (p = 1; p <= panels; p++) {
        for (c = 1; c <= attentions; c++) {
            begin_curve(p, "curve dots", c)
            for (T = shortest; T <= longest_T; T *= 2)
                if (value[panel[p], c, T] != "") add_point(doublings(T), value[panel[p], c, T] + 0)
            y = end_y[curves]
            if (y != "") label_curve(clean_text(label[c]) " " sprintf(y < 1 ? "%.3f" : y < 10 ? "%.1f" : "%.0f", y),
                note[c] == "" ? "" : "then " clean_text(note[c]))
        }
        if (!highest[p]) stop("panel " panel[p] ": this table has no such values")
    }
    if (panels == 2 && panel[1] != "memory" && panel[2] != "memory")     # speeds have one scale
        highest[1] = highest[2] = larger(highest[1], highest[2])
    width = 960; top = 104; plot_height = 240
    begin_page(width, top + plot_height + 62, (of_steps ? "Training step on " : "Causal attention on ") device, setting,
        26)
    plot_width = (width - 30) / panels - 90 - widest_label
    x_from = -0.15; x_to = doublings(longest_T) + 0.15
    for (p = 1; p <= panels; p++) {
        left = 60 + (p - 1) * (width - 20) / panels
        y_from = 0; y_to = highest[p] * 1.05
        write_text(left - 34, top - 16, "panel", "start", title[panel[p]])
        draw_y_axis(6)
        draw_x_axis("sequence length T")
        for (T = shortest; T <= longest_T; T *= 2) draw_x_tick(doublings(T), T)
        draw_curves(p)
    }
    print "</svg>"
}' "$@"
