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
    curves = split(name_list, name, ",")
    for (c = 1; c <= curves; c++) {
        label[c] = name[c]
        if (sub(/=.*/, "", name[c])) sub(/[^=]*=/, "", label[c])
        curve_of[name[c]] = c
    }
    all = !curves
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
    curves++
    name[curves] = label[curves] = cell("attention")
    curve_of[name[curves]] = curves
}
{
    T = cell("T") + 0
    if (!(T in is_T)) { is_T[T] = 1; lengths++ }
    if (!shortest || T < shortest) shortest = T
    if (T > longest_T) longest_T = T
    device = cell("device")
    setting = cell("dtype") (of_steps ? ", " cell("model") : ", head size " head_size ", " cell("heads") " heads") \
        ", B\303\227T = " cell("batch") * T
}
cell("attention") in curve_of {
    c = curve_of[cell("attention")]
    if (is_number(cell(of_steps ? "ms" : "forward_ms"))) points[c]++
    ms[1] = cell("forward_ms"); ms[2] = cell("backward_ms")
    value["forward", c, T] = cell("forward_tflops")
    value["backward", c, T] = cell("backward_tflops")
    value["memory", c, T] = cell(of_steps ? "memory_gib" : "memory_gb")
    value["speed", c, T] = of_steps ? cell("tokens_per_s") / 1000 : ""
    value["both", c, T] = ms[1] + ms[2] > 0 ? \
        (cell("forward_tflops") * ms[1] + cell("backward_tflops") * ms[2]) / (ms[1] + ms[2]) : ""
}

function doublings(T,   n) { while ((T /= 2) >= shortest) n++; return n + 0 }
function number_text(y) { return sprintf(y < 1 ? "%.3f" : y < 10 ? "%.1f" : "%.0f", y) }

# Speeds have one scale in both panels.
function range_of(what,   p, c, T, max) {
    for (p = 1; p <= panels; p++)
        if ((panel[p] == "memory") == (what == "memory"))
            for (c = 1; c <= curves; c++) for (T = shortest; T <= longest_T; T *= 2)
                if (value[panel[p], c, T] + 0 > max) max = value[panel[p], c, T] + 0
    if (!max) stop("panel " what ": this table has no such values")
    return max * 1.05
}
function draw_panel(what,   c, T, path, last) {
    y_from = 0; y_to = range_of(what)
    write_text(left - 34, top - 16, "panel", "start", title[what])
    draw_y_axis(6)
    draw_x_axis("sequence length T")
    for (T = shortest; T <= longest_T; T *= 2) draw_x_tick(doublings(T), T)
    for (c = curves; c >= 1; c--) {
        path = ""
        for (T = shortest; T <= longest_T; T *= 2) {
            if (value[what, c, T] == "") continue
            path = path (path == "" ? "M" : " ") point(doublings(T), value[what, c, T])
            last = T
        }
        if (path == "") continue
        printf("<path class=\"curve\" %s stroke-width=\"%.1f\" d=\"%s\"/>\n", stroke_of(c), c == 1 ? 2.8 : 2, path)
        for (T = shortest; T <= longest_T; T *= 2)
            if (value[what, c, T] != "")
                draw_marker(c, x_of(doublings(T)), y_of(value[what, c, T]), c == 1 ? 3.6 : 3)
        add_label(doublings(last), value[what, c, last], clean_text(label[c]) " " number_text(value[what, c, last]),
            colour_of(c), c == 1 ? "label bold" : "label", c)
    }
    draw_labels()
}

END {
    if (failed) exit 1
    if (!lengths) stop(head_size == "" ? "no rows" : "no rows with head size " head_size)
    for (c = 1; c <= curves; c++) {
        if (!points[c]) stop("no rows of " name[c] " at head size " head_size)
        if (length(label[c]) > widest) widest = length(label[c])
    }
    for (p = 1; p <= panels; p++) range_of(panel[p])
    width = 860; top = 104; plot_height = 240
    begin_page(width, top + plot_height + 62, (of_steps ? "Training step on " : "Causal attention on ") device, 26)
    write_text(26, 55, "small", "start", setting)
    right = 84 + 6.6 * widest
    plot_width = (width - 30) / panels - 40 - right
    x_from = -0.15; x_to = doublings(longest_T) + 0.15
    for (p = 1; p <= panels; p++) {
        left = 60 + (p - 1) * (width - 20) / panels
        draw_panel(panel[p])
    }
    print "</svg>"
}' "$@"
