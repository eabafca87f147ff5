#!/bin/sh
# scripts/plot_loss.sh RUN... > curves.svg - Draws the loss curves of one or more runs: the loss of each step thin, its
# running mean bold, the validation loss as points, and the floor dashed where settings.txt beside the log gives it
# ("# floor: 0.4321"). RUN is a run's directory, which names the curve, or a CSV file with the columns step and loss.
usage="usage: scripts/plot_loss.sh RUN... > curves.svg   (RUN: a run's directory, such as runs/book, or its log.csv)"
case ${1-} in
--help|-h) echo "$usage"; exit ;;
""|-*) echo "$usage" >&2; exit 1 ;;
esac
scripts=$(dirname "$0")
. "$scripts/logs.sh"

awk -F, -v script="$script" "$read_columns $(cat "$scripts/svg.awk")"'
# ---- reading

# The name of a log: its directory if it is log.csv, else its file name.
function name_of(path,   part, count) {
    count = split(path, part, "/")
    if (part[count] == "log.csv" && count > 1 && part[count - 1] != "." && part[count - 1] != "")
        return clean_text(part[count - 1])
    sub(/\.csv$/, "", part[count])
    return clean_text(part[count])
}

function read_floor(path,   line) {
    sub(/[^\/]*$/, "settings.txt", path)
    while ((getline line < path) > 0)
        if (sub(/^# floor: */, "", line) && is_number(line)) floor_of[file] = line + 0
    close(path)
}

FNR == 1 {
    want_columns("step loss", "a log of training steps")
    path[++file] = FILENAME
    name[file] = name_of(FILENAME)
    read_floor(FILENAME)
    next
}
!is_number(cell("step")) { next }                                # an incomplete row after a kill
{
    step = cell("step") + 0
    if (is_number(cell("loss"))) {
        n = ++rows[file]
        at[file, n] = step
        loss[file, n] = cell("loss") + 0
        gap[file, n] = broken                                    # NaN rows before: the line is interrupted
        broken = 0
        see_step(step)
    } else if (rows[file]) broken = 1
    if (is_number(cell("val_loss"))) {
        n = ++val_rows[file]
        val_at[file, n] = step
        val[file, n] = cell("val_loss") + 0
        see_step(step)
        see(val[file, n])
    }
}

function see_step(step) {
    if (!steps_seen++) first_step = last_step = step
    if (step < first_step) first_step = step
    if (step > last_step) last_step = step
}

# ---- drawing

function step_text(step) {
    if (last_step < 10000 || step == 0) return sprintf("%.10g", step)
    return last_step < 1e7 ? sprintf("%.10gk", step / 1e3) : sprintf("%.10gM", step / 1e6)
}

# Running mean, a hundredth of all rows on either side: symmetric at the start, where the loss falls fast and a
# one-sided mean would lag; truncated at the end, whose mean is printed as a number.
function smooth(f,   n, i, half, from, to) {
    n = rows[f]
    half = int(n / 100)
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
    printf "<path class=\"raw\" stroke=\"%s\" d=\"", colour_of(f)
    for (i = 1; i <= n; i += per) {
        low = high = i
        for (j = i + 1; j < i + per && j <= n; j++) {
            if (loss[f, j] < loss[f, low]) low = j
            if (loss[f, j] > loss[f, high]) high = j
        }
        first = low < high ? low : high
        printf("%s%s", i == 1 || (per == 1 && gap[f, i]) ? "M" : " ", point(at[f, first], loss[f, first]))
        if (low != high) printf " %s", point(at[f, low + high - first], loss[f, low + high - first])
    }
    print "\"/>"
}
function draw_mean(f,   i, n, per, open, previous) {
    n = rows[f]
    per = int(n / 400) + 1
    # later curves are thinner, so that overlapping ones stay visible
    printf("<path class=\"mean\" stroke=\"%s\" stroke-width=\"%.1f\" d=\"", colour_of(f),
        file == 1 ? 2.2 : 1.8 + 2.2 * (file - f) / (file - 1))
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
    printf "<path class=\"val\" stroke=\"%s\" d=\"", colour_of(f)
    for (i = 1; i <= n; i++) printf("%s%s", i == 1 ? "M" : " ", point(val_at[f, i], val[f, i]))
    print "\"/>"
    if (n <= 100) for (i = 1; i <= n; i++)
        printf("<circle class=\"dot\" stroke=\"%s\" cx=\"%.1f\" cy=\"%.1f\" r=\"%.1f\"/>\n", colour_of(f),
            x_of(val_at[f, i]), y_of(val[f, i]), n <= 40 ? 3.2 : 2.2)
}

END {
    if (failed) exit 1
    for (f = 1; f <= file; f++) {
        points += rows[f]
        if (!rows[f]) print script ": " shown(path[f]) ": no row with a loss yet" | "cat >&2"
    }
    if (!points) exit 1

    for (f = 1; f <= file; f++) {
        smooth(f)
        for (i = 1; i <= rows[f]; i++) see(mean[f, i])
        if (f in floor_of) see(floor_of[f])
        n = rows[f]
        if (n) add_label(at[f, n], mean[f, n], name[f] sprintf(" %.4f", mean[f, n]), colour_of(f), "label bold")
        n = val_rows[f]
        if (n) add_label(val_at[f, n], val[f, n], sprintf("validation %.4f", val[f, n]), colour_of(f), "label")
        if (window[f] > widest) widest = window[f]
    }
    # a step far above the rest may be clipped, one below is always visible
    for (f = 1; f <= file; f++) for (i = 1; i <= rows[f]; i++) if (loss[f, i] < lowest) see(loss[f, i])

    width = 860; height = 500; top = 84; bottom = 56; left = 64
    right = 28 + 7.2 * longest
    plot_width = width - left - right; plot_height = height - top - bottom
    x_from = first_step <= 1 + (last_step - first_step) / 20 && last_step > 20 ? 0 : first_step
    x_to = last_step > x_from ? last_step : x_from + 1
    margin = (highest - lowest) * 0.06
    if (margin < 1e-6) margin = 0.05 * (highest < 0 ? -highest : highest) + 0.01
    y_from = lowest - margin; y_to = highest + margin
    if (lowest >= 0 && y_from < 0) y_from = 0

    begin_page(width, height, "Training loss", left)
    printf "<clipPath id=\"plot\"><rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"/></clipPath>\n",
        left - 4, top - 4, plot_width + 8, plot_height + 4

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
    draw_y_axis(7)
    write_text(left - 9, top - 10, "small", "end", "nats")
    draw_x_axis("step")
    tick = round_step(x_to - x_from, plot_width > 500 ? 8 : 5)
    if (tick < 1) tick = 1
    for (i = round_up(x_from / tick); i * tick <= x_to; i++) draw_x_tick(i * tick, step_text(i * tick))

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

    draw_labels()
    print "</svg>"
}' "$@"
