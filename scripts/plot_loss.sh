#!/bin/sh
# scripts/plot_loss.sh LOG.csv... > loss.svg - Draws the loss curves of one or more logs: the loss of each step thin,
# its running mean bold, the validation loss as points; for a log with a line "# floor: 0.4321" the floor dashed.
LC_ALL=C
export LC_ALL
usage="usage: scripts/plot_loss.sh LOG.csv... > loss.svg"
[ $# -gt 0 ] || { echo "$usage" >&2; exit 1; }
for log in "$@"; do
    if [ ! -r "$log" ] || [ -d "$log" ]; then
        echo "plot_loss: $log: not a readable file; $usage" >&2
        exit 1
    fi
    shift
    case $log in /*) ;; *) log=./$log ;; esac       # awk takes a=b.csv for an assignment
    set -- "$@" "$log"
done

awk '
function stop(message) { print "plot_loss: " message | "cat >&2"; failed = 1; exit 1 }

# ---- reading

# The name of a log: its file name, or its directory if that is log.csv; valid UTF-8, at most 28 characters.
function name_of(path,   part, count, name, clean, length_seen) {
    count = split(path, part, "/")
    name = part[count]
    if (name == "log.csv" && count > 1 && part[count - 1] != "." && part[count - 1] != "") name = part[count - 1]
    else sub(/\.csv$/, "", name)
    for (length_seen = 0; name != ""; length_seen++) {
        if (length_seen == 27 && length(name) > 1) return clean "\342\200\246"
        if (match(name, /^[\302-\337][\200-\277]/) || match(name, /^\340[\240-\277][\200-\277]/) ||
            match(name, /^[\341-\354\356\357][\200-\277][\200-\277]/) || match(name, /^\355[\200-\237][\200-\277]/) ||
            match(name, /^\360[\220-\277][\200-\277][\200-\277]/) || match(name, /^[ -~]/))
            clean = clean substr(name, 1, RLENGTH)
        else { clean = clean "?"; RLENGTH = 1 }
        name = substr(name, RLENGTH + 1)
    }
    return clean
}

function is_number(text) { return text ~ /^[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?$/ }

FNR == 1 { file++; path[file] = FILENAME; name[file] = name_of(FILENAME); step_column = 0 }
{ sub(/\r$/, "") }
/^# floor:/ { if (is_number($3)) floor_of[file] = $3 + 0 }
/^#/ { next }
!step_column {
    columns = split($0, column, ",")
    loss_column = val_column = 0
    for (i = 1; i <= columns; i++) {
        if (column[i] == "step") step_column = i
        if (column[i] == "loss") loss_column = i
        if (column[i] == "val_loss") val_column = i
    }
    if (!step_column || !loss_column) stop(FILENAME ": not a log of training steps: no columns step and loss")
    next
}
{
    split($0, cell, ",")
    if (!is_number(cell[step_column])) next                      # an incomplete row after a kill
    step = cell[step_column] + 0
    if (is_number(cell[loss_column])) {
        n = ++rows[file]
        at[file, n] = step
        loss[file, n] = cell[loss_column] + 0
        gap[file, n] = broken                                    # NaN rows before: the line is interrupted
        broken = 0
        see_step(step)
    } else if (rows[file]) broken = 1
    if (val_column && is_number(cell[val_column])) {
        n = ++val_rows[file]
        val_at[file, n] = step
        val[file, n] = cell[val_column] + 0
        see_step(step)
        see(val[file, n])
    }
}

function see_step(step) {
    if (!steps_seen++) first_step = last_step = step
    if (step < first_step) first_step = step
    if (step > last_step) last_step = step
}
function see(y) {
    if (!values_seen++) lowest = highest = y
    if (y < lowest) lowest = y
    if (y > highest) highest = y
}

# ---- drawing

function x_of(step) { return left + (step - x_from) / (x_to - x_from) * plot_width }
function y_of(y) { return top + (y_to - y) / (y_to - y_from) * plot_height }
function point(step, y) { return sprintf("%.1f,%.1f", x_of(step), y_of(y)) }

function escaped(text) {
    gsub(/&/, "\\&amp;", text); gsub(/</, "\\&lt;", text); gsub(/>/, "\\&gt;", text); gsub(/"/, "\\&quot;", text)
    return text
}
function write_text(x, y, class, anchor, text, fill) {
    printf "<text x=\"%.1f\" y=\"%.1f\" class=\"%s\" text-anchor=\"%s\"%s>%s</text>\n", x, y, class, anchor,
        fill == "" ? "" : " style=\"fill: " fill "\"", escaped(text)
}

# The round step (1, 2 or 5 times a power of ten) that cuts the range into at most so many parts.
function round_step(range, parts,   power, s) {
    power = 10 ^ int(log(range / parts) / log(10) - 3)
    for (; ; power *= 10)
        for (s = 1; s <= 5; s += s == 2 ? 3 : 1)
            if ((s == 1 || s == 2 || s == 5) && s * power * parts >= range * 0.9999) return s * power
}
function floor_of_number(x) { return x < int(x) ? int(x) - 1 : int(x) }
function step_text(step) {
    if (last_step < 10000 || step == 0) return sprintf("%.10g", step)
    return last_step < 1e7 ? sprintf("%.10gk", step / 1e3) : sprintf("%.10gM", step / 1e6)
}

# Running mean, a fiftieth of all rows on either side: symmetric at the start, where the loss falls fast and a one-sided
# mean would lag; truncated at the end, whose mean is printed as a number.
function smooth(f,   n, i, half, from, to) {
    n = rows[f]
    half = int(n / 50)
    if (half > 100) half = 100
    sum[0] = 0
    for (i = 1; i <= n; i++) sum[i] = sum[i - 1] + loss[f, i]
    for (i = 1; i <= n; i++) {
        from = i > half ? i - half : 1
        to = i > half ? i + half : 2 * i - 1
        if (to > n) to = n
        mean[f, i] = (sum[to] - sum[from - 1]) / (to - from + 1)
    }
    window[f] = 2 * half + 1
}

# The loss of each step; where several share a pixel, their minimum and maximum.
function draw_raw(f,   i, n, per, low, high, first) {
    n = rows[f]
    per = int(n / plot_width) + 1
    printf "<path class=\"raw\" stroke=\"%s\" d=\"", colour[f]
    for (i = 1; i <= n; i += per) {
        low = high = i
        for (j = i + 1; j < i + per && j <= n; j++) {
            if (loss[f, j] < loss[f, low]) low = j
            if (loss[f, j] > loss[f, high]) high = j
        }
        first = low < high ? low : high
        printf "%s%s", i == 1 || (per == 1 && gap[f, i]) ? "M" : " ", point(at[f, first], loss[f, first])
        if (low != high) printf " %s", point(at[f, low + high - first], loss[f, low + high - first])
    }
    print "\"/>"
}
function draw_mean(f,   i, n, per, open, previous) {
    n = rows[f]
    per = int(n / 400) + 1
    # later curves are thinner, so that overlapping ones stay visible
    printf "<path class=\"mean\" stroke=\"%s\" stroke-width=\"%.1f\" d=\"", colour[f],
        file == 1 ? 2.2 : 1.8 + 2.2 * (file - f) / (file - 1)
    for (i = 1; i <= n; i++) {
        if (gap[f, i]) open = 0
        if (open && i % per && i < n && !gap[f, i + 1]) continue
        printf "%s%s", open ? " " : "M", point(at[f, i], mean[f, i])
        open = 1
    }
    if (n == 1) printf " h0"                                     # a dot, by its round ends
    print "\"/>"
}
function draw_val(f,   i, n) {
    n = val_rows[f]
    printf "<path class=\"val\" stroke=\"%s\" d=\"", colour[f]
    for (i = 1; i <= n; i++) printf "%s%s", i == 1 ? "M" : " ", point(val_at[f, i], val[f, i])
    print "\"/>"
    if (n <= 100) for (i = 1; i <= n; i++)
        printf "<circle class=\"dot\" stroke=\"%s\" cx=\"%.1f\" cy=\"%.1f\" r=\"%.1f\"/>\n", colour[f],
            x_of(val_at[f, i]), y_of(val[f, i]), n <= 40 ? 3.2 : 2.2
}

function add_label(f, y, text, bold) {
    labels++
    label_y[labels] = y; label_text[labels] = text; label_file[labels] = f; label_bold[labels] = bold
    if (length(text) > longest) longest = length(text)
}

END {
    if (failed) exit 1
    for (f = 1; f <= file; f++) points += rows[f]
    if (!points) { print "plot_loss: no row with a loss in " (file == 1 ? path[1] : "these logs") | "cat >&2"; exit 1 }

    split("#2563eb #dc5f1f #0d9668 #9333ea #c8215d #0e7f9f #8a6d0b #57606a", palette, " ")
    for (f = 1; f <= file; f++) {
        colour[f] = palette[(f - 1) % 8 + 1]
        smooth(f)
        for (i = 1; i <= rows[f]; i++) see(mean[f, i])
        if (f in floor_of) see(floor_of[f])
        if (rows[f]) add_label(f, mean[f, rows[f]], name[f] sprintf(" %.4f", mean[f, rows[f]]), 1)
        if (val_rows[f]) add_label(f, val[f, val_rows[f]], sprintf("validation %.4f", val[f, val_rows[f]]), 0)
        if (window[f] > widest) widest = window[f]
    }
    # a step far above the rest may be clipped, one below is always visible
    for (f = 1; f <= file; f++) for (i = 1; i <= rows[f]; i++) if (loss[f, i] < lowest) see(loss[f, i])

    width = 960; height = 540; top = 84; bottom = 56; left = 64
    right = 28 + 7.2 * longest
    plot_width = width - left - right; plot_height = height - top - bottom
    x_from = first_step <= 1 + (last_step - first_step) / 20 && last_step > 20 ? 0 : first_step
    x_to = last_step > x_from ? last_step : x_from + 1
    margin = (highest - lowest) * 0.06
    if (margin < 1e-6) margin = 0.05 * (highest < 0 ? -highest : highest) + 0.01
    y_from = lowest - margin; y_to = highest + margin
    if (lowest >= 0 && y_from < 0) y_from = 0

    printf "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\" ", width, height,
        width, height
    print "font-family=\"Inter, Helvetica Neue, Helvetica, Arial, Liberation Sans, DejaVu Sans, sans-serif\">"
    print "<style>"
    print "text { font-size: 12px; fill: #57606a } .title { font-size: 18px; font-weight: 600; fill: #1f2328 }"
    print ".small { font-size: 11.5px; fill: #6e7781 } .label { font-size: 12.5px } .bold { font-weight: 600 }"
    print "path { fill: none; stroke-linejoin: round; stroke-linecap: round }"
    print ".raw { stroke-width: 0.8; stroke-opacity: 0.28 } .val { stroke-width: 1.2; stroke-dasharray: 1 3.5 }"
    print ".dot { fill: #fff; stroke-width: 1.6 }"
    print ".grid { stroke: #e8ebee; stroke-width: 1 } .axis { stroke: #8c959f; stroke-width: 1 }"
    print ".floor { stroke: #6e7781; stroke-width: 1.2; stroke-dasharray: 6 4 }"
    print ".lead { stroke-width: 1; stroke-opacity: 0.45 }"
    print "</style>"
    print "<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>"
    printf "<clipPath id=\"plot\"><rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"/></clipPath>\n",
        left - 4, top - 4, plot_width + 8, plot_height + 4
    write_text(left, 34, "title", "start", "Training loss")

    # legend
    x = left; y = 56
    if (widest > 1) {
        printf "<path class=\"raw\" style=\"stroke-opacity: 0.5\" stroke=\"#57606a\" d=\"M%d,%d h22\"/>\n", x, y - 4
        write_text(x + 28, y, "small", "start", "each step")
        x += 98
    }
    text = widest > 1 ? "mean of " (file > 1 ? "up to " : "") widest " steps" : "each step"
    printf "<path class=\"mean\" stroke=\"#57606a\" stroke-width=\"2.2\" d=\"M%d,%d h22\"/>\n", x, y - 4
    write_text(x + 28, y, "small", "start", text)
    x += 46 + 6 * length(text)
    for (f = 1; f <= file; f++) any_val += val_rows[f]
    if (any_val) {
        printf "<path class=\"val\" stroke=\"#57606a\" d=\"M%d,%d h22\"/>\n", x, y - 4
        printf "<circle class=\"dot\" stroke=\"#57606a\" cx=\"%d\" cy=\"%d\" r=\"3.2\"/>\n", x + 11, y - 4
        write_text(x + 28, y, "small", "start", "validation")
    }

    # axes
    tick = round_step(y_to - y_from, 7)
    digits = 0
    for (t = tick; t < 0.9999 && digits < 9; t *= 10) digits++
    for (i = 0 - floor_of_number(-y_from / tick); i * tick <= y_to; i++) {
        printf "<path class=\"grid\" d=\"M%.1f,%.1f h%.1f\"/>\n", left, y_of(i * tick), plot_width
        write_text(left - 9, y_of(i * tick) + 4, "tick", "end", sprintf("%.*f", digits, i * tick))
    }
    tick = round_step(x_to - x_from, plot_width > 500 ? 8 : 5)
    if (tick < 1) tick = 1
    for (i = 0 - floor_of_number(-x_from / tick); i * tick <= x_to; i++) {
        printf "<path class=\"axis\" d=\"M%.1f,%.1f v5\"/>\n", x_of(i * tick), top + plot_height
        write_text(x_of(i * tick), top + plot_height + 20, "tick", "middle", step_text(i * tick))
    }
    printf "<path class=\"axis\" d=\"M%.1f,%.1f h%.1f\"/>\n", left, top + plot_height, plot_width
    write_text(left + plot_width / 2, height - 14, "small", "middle", "step")
    write_text(left - 9, top - 10, "small", "end", "nats")

    # curves
    print "<g clip-path=\"url(#plot)\">"
    for (f = 1; f <= file; f++) if (rows[f] > 2 && widest > 1) draw_raw(f)
    for (f = 1; f <= file; f++) {
        if (!(f in floor_of) || (floor_of[f] in floor_drawn)) continue
        floor_drawn[floor_of[f]] = 1
        printf "<path class=\"floor\" d=\"M%.1f,%.1f h%.1f\"/>\n", left, y_of(floor_of[f]), plot_width
    }
    for (f = 1; f <= file; f++) if (rows[f]) draw_mean(f)
    print "</g>"
    for (f = 1; f <= file; f++) if (val_rows[f]) draw_val(f)
    for (y in floor_drawn)
        write_text(left + 8, y_of(y) + (y_of(y) + 18 < top + plot_height ? 15 : -6), "small", "start",
            sprintf("floor %.4f", y))

    # labels at the ends of their curves, pushed apart from the top down and back up
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
        f = label_file[i]
        x = x_of(label_bold[i] ? at[f, rows[f]] : val_at[f, val_rows[f]])
        printf "<path class=\"lead\" stroke=\"%s\" d=\"M%.1f,%.1f L%.1f,%.1f\"/>\n", colour[f], x + 5, y_of(label_y[i]),
            left + plot_width + 14, place[i]
        write_text(left + plot_width + 18, place[i] + 4, label_bold[i] ? "label bold" : "label", "start",
            label_text[i], colour[f])
    }
    print "</svg>"
}' "$@"
