#!/bin/sh
# plot_loss.sh [--y LIST] [--x step|tokens|time] RUN... > curves.svg - Draws the curves of one or more runs.
# scripts/plot_loss.sh --html RUN... > report.html - The same as one page for a browser, with settings and samples.
# RUN is a run's directory, its log.csv or its log.jsonl.
#   LIST   panels, from top to bottom: loss, difference (of the mean loss of 20 steps from that of the first RUN), norm,
#          lr, speed; all = loss,norm,lr,speed; default loss
# The value of each step is thin, its running mean bold, the validation loss as points, and the floor dashed where
# settings.txt beside the log gives it ("# floor: 0.4321").
usage="usage: scripts/plot_loss.sh [--y LIST] [--x step|tokens|time] RUN... > curves.svg   (--html: a page)"
panels=loss x=step html=
while :; do
    case ${1-} in
    --help|-h) echo "$usage"; echo; sed -n '2,/^usage=/s/^# \{0,1\}//p' "$0"; exit ;;
    --y=*|--x=*) option=$1; shift; set -- "${option%%=*}" "${option#*=}" "$@" ;;
    --y) panels=${2-}; shift; [ $# = 0 ] || shift ;;
    --x) x=${2-}; shift; [ $# = 0 ] || shift ;;
    --html) html=1; shift ;;
    ""|-*) echo "$usage" >&2; exit 1 ;;
    *) break ;;
    esac
done
[ "$panels" != all ] || panels=loss,norm,lr,speed
scripts=$(dirname "$0")
. "$scripts/logs.sh"
if [ -n "$html" ]; then . "$scripts/report.sh"; exit; fi

awk -F, -v script="$script" -v panel_list="$panels" -v x_name="$x" "$read_columns $(cat "$scripts/svg.awk")"'
BEGIN {
    title["loss"] = "Training loss, nats"
    title["difference"] = "Difference of the mean loss of 20 steps"
    title["norm"] = "Gradient norm"
    title["lr"] = "Learning rate"
    title["speed"] = "Tokens per second"
    column_of["loss"] = "loss"; column_of["norm"] = "norm"; column_of["lr"] = "lr"; column_of["speed"] = "tokens_per_s"
    column_of["step"] = "step"; column_of["tokens"] = "tokens"; column_of["time"] = "seconds"
    panels = split(panel_list, panel, ",")
    for (p = 1; p <= panels; p++)
        if (!(panel[p] in title)) stop("--y " panel[p] ": want loss, difference, norm, lr, speed or all")
    if (x_name !~ /^(step|tokens|time)$/) stop("--x " x_name ": want step, tokens or time")
}

# ---- reading

FNR == 1 {
    want_columns("step loss " column_of[x_name], "a log of training steps")
    path[++file] = FILENAME
    name[file] = clean_text(name_of(FILENAME))
    floor_text = setting_comment(FILENAME, "floor")
    if (is_number(floor_text)) floor_of[file] = floor_text + 0
    next
}
!is_number(cell("step")) { next }                                # an incomplete row after a kill
{
    step = cell("step") + 0
    if (is_number(cell("loss"))) {
        n = ++rows[file]
        step_at[file, n] = step
        at[file, n] = x_of_step[file, step] = cell(column_of[x_name]) + 0
        for (p = 1; p <= panels; p++)
            if (panel[p] in column_of && is_number(cell(column_of[panel[p]])))
                value[panel[p], file, n] = cell(column_of[panel[p]]) + 0
        loss[file, n] = cell("loss") + 0
        gap[file, n] = broken                                    # NaN rows before: the line is interrupted
        broken = 0
        see_x(at[file, n])
    } else if (rows[file] && cell("norm") != "") broken = 1
    if (is_number(cell("val_loss"))) {                           # in log.jsonl in front of its step
        n = ++val_rows[file]
        val_at[file, n] = step
        val[file, n] = cell("val_loss") + 0
    }
}

function see_x(x) {
    if (!x_seen++) first_x = last_x = x
    if (x < first_x) first_x = x
    if (x > last_x) last_x = x
}

# ---- drawing

function count_text(count) {
    if (last_x < 10000 || count == 0) return sprintf("%.10g", count)
    if (last_x < 1e7) return sprintf("%.10gk", count / 1e3)
    return last_x < 1e10 ? sprintf("%.10gM", count / 1e6) : sprintf("%.10gG", count / 1e9)
}
function value_text(what, y) {
    if (what == "loss") return sprintf("%.4f", y)
    if (what == "speed") return y < 1e5 ? sprintf("%.1f k", y / 1e3) : sprintf("%.0f k", y / 1e3)
    return sprintf(what == "difference" ? "%.2g" : "%.3g", y)
}

# Points of a curve: px, py, broken by gaps where cut. Of the difference: the means over 20 steps, at their middle.
function take_points(what, f,   i, n, first, k, block, sum, count, reference, middle) {
    points = 0
    split("", cut)
    if (what != "difference") {
        for (i = 1; i <= rows[f]; i++) {
            if (!((what, f, i) in value)) continue
            px[++points] = at[f, i]
            py[points] = value[what, f, i]
            if (gap[f, i]) cut[points] = 1
        }
        return
    }
    for (k = 1; k <= 2; k++) {
        split("", sum); split("", count)
        first = k == 1 ? 1 : f
        for (i = 1; i <= rows[first]; i++) {
            block = int((step_at[first, i] - 1) / 20)
            sum[block] += loss[first, i]
            if (++count[block] == 10) middle[block] = at[first, i]
            if (count[block] < 20) continue
            if (k == 1) reference[block] = sum[block] / 20
            else if (block in reference) {
                px[++points] = middle[block]
                py[points] = sum[block] / 20 - reference[block]
            }
        }
    }
}

# Running mean, a hundredth of all rows on either side: symmetric at the start, where the loss falls fast and a
# one-sided mean would lag; truncated at the end, whose mean is printed as a number.
function smooth(what,   n, i, half, from, to, sum) {
    n = points
    half = what == "lr" || what == "difference" ? 0 : int(n / 100)
    if (half > 100) half = 100
    sum[0] = 0
    for (i = 1; i <= n; i++) sum[i] = sum[i - 1] + py[i]
    for (i = 1; i <= n; i++) {
        from = i > half ? i - half : 1
        to = i > half ? i + half : 2 * i - 1
        if (to > n) to = n
        mean[i] = half ? (sum[to] - sum[from - 1]) / (to - from + 1) : py[i]
    }
    window = 2 * half + 1
    if (what == "loss" && window > widest) widest = window
}

# The value of each step; where several share a pixel, their minimum and maximum.
function draw_raw(f,   i, j, per, low, high, first) {
    per = int(points / plot_width) + 1
    printf "<path class=\"raw\" stroke=\"%s\" d=\"", colour_of(f)
    for (i = 1; i <= points; i += per) {
        low = high = i
        for (j = i + 1; j < i + per && j <= points; j++) {
            if (py[j] < py[low]) low = j
            if (py[j] > py[high]) high = j
        }
        first = low < high ? low : high
        printf("%s%s", i == 1 || (per == 1 && i in cut) ? "M" : " ", point(px[first], py[first]))
        if (low != high) printf " %s", point(px[low + high - first], py[low + high - first])
    }
    print "\"/>"
}
function draw_mean(f,   i, per, open) {
    per = int(points / 400) + 1
    # later curves are thinner, so that overlapping ones stay visible
    printf("<path class=\"mean\" %s stroke-width=\"%.1f\" d=\"", stroke_of(f),
        f == 1 ? 2.2 : 1.7 + 2.2 * (file - f) / (file - 1) / 2)
    for (i = 1; i <= points; i++) {
        if (i in cut) open = 0
        if (open && i % per && i < points && !((i + 1) in cut)) continue
        printf "%s%s", open ? " " : "M", point(px[i], mean[i])
        open = 1
    }
    if (points == 1) printf " h0"                                # a dot, by its round ends
    print "\"/>"
}
function draw_val(f,   i, n) {
    n = val_rows[f]
    printf "<path class=\"val\" stroke=\"%s\" d=\"", colour_of(f)
    for (i = 1; i <= n; i++) printf("%s%s", i == 1 ? "M" : " ", point(x_of_step[f, val_at[f, i]], val[f, i]))
    print "\"/>"
    if (n <= 100) for (i = 1; i <= n; i++)
        draw_marker(f, x_of(x_of_step[f, val_at[f, i]]), y_of(val[f, i]), n <= 40 ? 3.2 : 2.2)
}

# The range of a panel, and the labels of its curves. Returns how many runs have values.
function see_panel(what,   f, i, n, found, worst) {
    values_seen = labels = 0
    for (f = 1; f <= file; f++) {
        take_points(what, f)
        n = points
        if (!n || (what == "difference" && f == 1)) continue
        found++
        smooth(what)
        worst = 0
        for (i = 1; i <= n; i++) {
            see(mean[i])
            if (mean[i] > worst || mean[i] < -worst) worst = mean[i] < 0 ? -mean[i] : mean[i]
        }
        if (what == "loss") {
            lows[f] = py[1]
            for (i = 1; i <= n; i++) if (py[i] < lows[f]) lows[f] = py[i]
        }
        add_label(px[n], mean[n], name[f] (what == "difference" ? " at most " value_text(what, worst) : \
            " " value_text(what, mean[n])), colour_of(f), "label bold", f)
        if (what != "loss") continue
        if (f in floor_of) see(floor_of[f])
        for (i = 1; i <= val_rows[f]; i++) see(val[f, i])
        n = val_rows[f]
        if (n) add_label(x_of_step[f, val_at[f, n]], val[f, n], "validation " value_text(what, val[f, n]), colour_of(f),
            "label", 0)
    }
    # a step far above the rest may be clipped, one below is always visible
    if (what == "loss") for (f = 1; f <= file; f++) if (f in lows) see(lows[f])
    margin = (highest - lowest) * 0.06
    if (margin < 1e-6 * highest) margin = 0.05 * (highest < 0 ? -highest : highest) + (what == "loss" ? 0.01 : 0)
    if (what == "difference" && lowest > 0) lowest = 0
    if (what == "difference" && highest < 0) highest = 0
    if (margin <= 0) margin = 1e-9
    y_from = what == "lr" || what == "speed" ? 0 : lowest - margin
    y_to = highest + margin
    if (lowest >= 0 && y_from < 0) y_from = 0
    return found
}

function draw_panel(p, what,   f, y, tick, i, text, drawn) {
    if (!see_panel(what)) stop("--y " what ": no run has such values" (what == "difference" ? " beside the first" : ""))
    printf "<clipPath id=\"panel%d\"><rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"/></clipPath>\n", p,
        left - 4, top - 4, plot_width + 8, plot_height + 4
    write_text(left, top - 10, "panel", "start", title[what])
    draw_y_axis(what == "loss" ? 7 : 4)
    draw_x_axis(p < panels ? "" : x_name == "step" ? "step" : x_name == "tokens" ? "tokens" : "time, " unit_name)
    tick = round_step((x_to - x_from) / unit, plot_width > 500 ? 8 : 5)
    if (tick < 1 && x_name != "time") tick = 1
    for (i = round_up(x_from / unit / tick); i * tick * unit <= x_to; i++)
        draw_x_tick(i * tick * unit, p < panels ? "" : x_name == "time" ? sprintf("%.10g", i * tick) : \
            count_text(i * tick))

    printf "<g clip-path=\"url(#panel%d)\">\n", p
    for (f = 1; f <= file; f++) {
        take_points(what, f)
        if (points > 2) smooth(what)
        if (points > 2 && window > 1) draw_raw(f)
    }
    for (f = 1; f <= file && what == "loss"; f++) {
        if (!(f in floor_of) || (floor_of[f] in drawn)) continue
        drawn[floor_of[f]] = 1
        printf "<path class=\"floor\" d=\"M%.1f,%.1f h%.1f\"/>\n", left, y_of(floor_of[f]), plot_width
    }
    if (what == "difference") printf "<path class=\"axis\" d=\"M%.1f,%.1f h%.1f\"/>\n", left, y_of(0), plot_width
    for (f = 1; f <= file; f++) {
        take_points(what, f)
        if (!points || (what == "difference" && f == 1)) continue
        smooth(what)
        draw_mean(f)
    }
    print "</g>"
    if (what == "loss") for (f = 1; f <= file; f++) if (val_rows[f]) draw_val(f)
    for (y in drawn)
        write_text(left + 8, y_of(y) + (y_of(y) + 18 < top + plot_height ? 15 : -6), "small", "start",
            sprintf("floor %.4f", y))
    draw_labels()
}

END {
    if (failed) exit 1
    for (f = 1; f <= file; f++) {
        all += rows[f]
        if (!rows[f]) print script ": " shown(path[f]) ": no row with a loss yet" | "cat >&2"
        # a validation whose step is not there, or not yet
        for (i = n = 0; ++i <= val_rows[f]; ) if ((f, val_at[f, i]) in x_of_step) {
            val_at[f, ++n] = val_at[f, i]
            val[f, n] = val[f, i]
        }
        any_val += val_rows[f] = n
    }
    if (!all) exit 1

    x_from = first_x <= 1 + (last_x - first_x) / 20 && last_x > 20 ? 0 : first_x
    if (x_name != "step") x_from = 0
    x_to = last_x > x_from ? last_x : x_from + 1
    unit = x_name != "time" || x_to < 600 ? 1 : x_to < 10800 ? 60 : 3600
    unit_name = unit == 1 ? "s" : unit == 60 ? "minutes" : "hours"
    for (p = 1; p <= panels; p++) see_panel(panel[p])            # for the longest label and the mean
    width = 860; left = 76; bottom = 56; top = 96
    right = 52 + 7.2 * longest
    plot_width = width - left - right
    for (p = 1; p <= panels; p++) plot_heights += panel_height[p] = panels == 1 ? 348 : panel[p] == "loss" ? 260 : 130
    begin_page(width, top + plot_heights + 44 * (panels - 1) + bottom, "Training curves", left)

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
    if (any_val && "," panel_list "," ~ /,loss,/) {
        printf "<path class=\"val\" stroke=\"#57606a\" d=\"M%d,%d h22\"/>\n", x, y - 4
        printf "<circle class=\"dot\" stroke=\"#57606a\" cx=\"%d\" cy=\"%d\" r=\"3.2\"/>\n", x + 11, y - 4
        write_text(x + 28, y, "small", "start", "validation")
    }

    for (p = 1; p <= panels; p++) {
        plot_height = panel_height[p]
        draw_panel(p, panel[p])
        top += plot_height + 44
    }
    print "</svg>"
}' "$@"
