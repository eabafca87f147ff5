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
    "$read_columns"'
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
    split("#2563eb #dc5f1f #0d9668 #9333ea #c8215d #0e7f9f #8a6d0b #57606a", palette, " ")
    split("none;7 4;2 4;10 4 2 4;14 5;4 3;8 3 2 3 2 3;1 3", dashes, ";")
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

# ---- drawing: a panel is left, top, plot_width, plot_height and the ranges x_from, x_to, y_from, y_to. Curves differ
# in colour and in dashes, points in their shape: without colours they still can be told apart

function colour_of(i) { return palette[(i - 1) % 8 + 1] }
function stroke_of(i) {
    return "stroke=\"" colour_of(i) "\"" (i % 8 == 1 ? "" : " stroke-dasharray=\"" dashes[(i - 1) % 8 + 1] "\"")
}
# A circle, square, diamond or triangle.
function draw_marker(i, x, y, r) {
    printf "<path class=\"dot\" stroke=\"%s\" d=\"", colour_of(i)
    if (i % 4 == 1)
        printf "M%.1f,%.1f a%.1f,%.1f 0 1 0 %.1f,0 a%.1f,%.1f 0 1 0 %.1f,0 z", x - r, y, r, r, 2 * r, r, r, -2 * r
    if (i % 4 == 2) printf "M%.1f,%.1f h%.1f v%.1f h%.1f z", x - r, y - r, 2 * r, 2 * r, -2 * r
    if (i % 4 == 3)
        printf "M%.1f,%.1f L%.1f,%.1f L%.1f,%.1f L%.1f,%.1f z", x, y - 1.4 * r, x + 1.4 * r, y, x,
            y + 1.4 * r, x - 1.4 * r, y
    if (i % 4 == 0) printf "M%.1f,%.1f l%.1f,%.1f h%.1f z", x, y - 1.3 * r, 1.3 * r, 2.2 * r, -2.6 * r
    print "\"/>"
}

function begin_page(width, height, title, x) {
    printf "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\" ", width, height,
        width, height
    print "font-family=\"Inter, Helvetica Neue, Helvetica, Arial, Liberation Sans, DejaVu Sans, sans-serif\">"
    print "<style>"
    print "text { font-size: 12px; fill: #57606a } .title { font-size: 18px; font-weight: 600; fill: #1f2328 }"
    print ".panel { font-size: 13.5px; font-weight: 600; fill: #1f2328 } .small { font-size: 11.5px; fill: #6e7781 }"
    print ".label { font-size: 12.5px } .bold { font-weight: 600 }"
    print "path { fill: none; stroke-linejoin: round; stroke-linecap: round }"
    print ".dot { fill: #fff; stroke-width: 1.6 }"
    print ".grid { stroke: #e8ebee; stroke-width: 1 } .axis { stroke: #8c959f; stroke-width: 1 }"
    print ".lead { stroke-width: 1; stroke-opacity: 0.45 }"
    print "</style>"
    print "<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>"
    write_text(x, 34, "title", "start", title)
}

# Valid UTF-8 of at most 28 characters.
function clean_text(text,   clean, count) {
    for (count = 0; text != ""; count++) {
        if (count == 27 && length(text) > 1) return clean "\342\200\246"
        if (match(text, /^[\302-\337][\200-\277]/) || match(text, /^\340[\240-\277][\200-\277]/) ||
            match(text, /^[\341-\354\356\357][\200-\277][\200-\277]/) || match(text, /^\355[\200-\237][\200-\277]/) ||
            match(text, /^\360[\220-\277][\200-\277][\200-\277]/) || match(text, /^[ -~]/))
            clean = clean substr(text, 1, RLENGTH)
        else { clean = clean "?"; RLENGTH = 1 }
        text = substr(text, RLENGTH + 1)
    }
    return clean
}
function escaped(text) {
    gsub(/&/, "\\&amp;", text); gsub(/</, "\\&lt;", text); gsub(/>/, "\\&gt;", text); gsub(/"/, "\\&quot;", text)
    return text
}
function write_text(x, y, class, anchor, text, fill) {
    printf("<text x=\"%.1f\" y=\"%.1f\" class=\"%s\" text-anchor=\"%s\"%s>%s</text>\n", x, y, class, anchor,
        fill == "" ? "" : " style=\"fill: " fill "\"", escaped(text))
}

function x_of(x) { return left + (x - x_from) / (x_to - x_from) * plot_width }
function y_of(y) { return top + (y_to - y) / (y_to - y_from) * plot_height }
function point(x, y) { return sprintf("%.1f,%.1f", x_of(x), y_of(y)) }
function round_up(x) { return x > int(x) ? int(x) + 1 : int(x) }

# The round step (1, 2 or 5 times a power of ten) that cuts the range into at most so many parts.
function round_step(range, parts,   power, s) {
    for (power = 1; power * parts > range; ) power /= 10
    for (; ; power *= 10)
        for (s = 1; s <= 5; s += s == 2 ? 3 : 1)
            if ((s == 1 || s == 2 || s == 5) && s * power * parts >= range * 0.9999) return s * power
}
# Grid lines and their values.
function draw_y_axis(parts,   i, t, tick, digits) {
    tick = round_step(y_to - y_from, parts)
    for (t = tick; t < 0.9999 && digits < 9; t *= 10) digits++
    for (i = round_up(y_from / tick); i * tick <= y_to; i++) {
        printf "<path class=\"grid\" d=\"M%.1f,%.1f h%.1f\"/>\n", left, y_of(i * tick), plot_width
        write_text(left - 9, y_of(i * tick) + 4, "tick", "end", sprintf("%." (digits + 0) "f", i * tick + 0))
    }
}
function draw_x_axis(name) {
    printf "<path class=\"axis\" d=\"M%.1f,%.1f h%.1f\"/>\n", left, top + plot_height, plot_width
    write_text(left + plot_width / 2, top + plot_height + 42, "small", "middle", name)
}
function draw_x_tick(x, text) {
    printf "<path class=\"axis\" d=\"M%.1f,%.1f v5\"/>\n", x_of(x), top + plot_height
    write_text(x_of(x), top + plot_height + 20, "tick", "middle", text)
}

# A label at the right of the panel, joined to the end of its curve.
function add_label(x, y, text, curve) {
    labels++
    label_x[labels] = x; label_y[labels] = y; label_text[labels] = text; label_curve[labels] = curve
}
# Pushed apart from the top down and back up.
function draw_labels(   i, j, t, room, limit, order, place) {
    for (i = 1; i <= labels; i++) { order[i] = i; place[i] = y_of(label_y[i]) }
    for (i = 2; i <= labels; i++)
        for (j = i; j > 1 && place[order[j]] < place[order[j - 1]]; j--) {
            t = order[j]; order[j] = order[j - 1]; order[j - 1] = t
        }
    room = labels * 17 > plot_height ? plot_height / labels : 17
    for (i = 2; i <= labels; i++)
        if (place[order[i]] < place[order[i - 1]] + room) place[order[i]] = place[order[i - 1]] + room
    limit = top + plot_height - 4
    for (i = labels; i >= 1; i--) {
        if (place[order[i]] > limit) place[order[i]] = limit
        limit = place[order[i]] - room
    }
    for (i = 1; i <= labels; i++) {
        # level inside the plot: a slope there would look like data
        printf "<path class=\"lead\" stroke=\"%s\" d=\"M%.1f,%.1f H%.1f L%.1f,%.1f\"/>\n", colour_of(label_curve[i]),
            x_of(label_x[i]) + 5, y_of(label_y[i]), left + plot_width + 6, left + plot_width + 14, place[i]
        printf("<path %s stroke-width=\"2\" d=\"M%.1f,%.1f h20\"/>\n", stroke_of(label_curve[i]),
            left + plot_width + 16, place[i])
        write_text(left + plot_width + 42, place[i] + 4, label_curve[i] == 1 ? "label bold" : "label", "start",
            label_text[i], colour_of(label_curve[i]))
    }
    labels = 0
}

# ---- the panels

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
        add_label(doublings(last), value[what, c, last], clean_text(label[c]) " " number_text(value[what, c, last]), c)
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
