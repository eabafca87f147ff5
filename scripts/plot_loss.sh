#!/bin/sh
# plot_loss.sh [--y LIST] RUN... > curves.svg - Draws the curves of one or more runs over their steps.
# RUN is a run's directory or its log.csv.
#   LIST   panels, from top to bottom: loss, norm, lr, speed; all = all four; default loss
# Each step is thin, the running mean bold, the validation loss dotted, and the floor dashed where settings.txt beside
# the log gives it ("# floor: 0.4321"). Long runs are thinned as in report.html, where tokens and time are axes, too.
usage="usage: scripts/plot_loss.sh [--y LIST] RUN... > curves.svg"
panels=loss
while :; do
    case ${1-} in
    --help|-h) echo "$usage"; echo; sed -n '2,/^usage=/s/^# \{0,1\}//p' "$0"; exit ;;
    --y=*) panels=${1#*=}; shift ;;
    --y) panels=${2-}; shift; [ $# = 0 ] || shift ;;
    ""|-*) echo "$usage   (--help explains)" >&2; exit 1 ;;
    *) break ;;
    esac
done
[ "$panels" != all ] || panels=loss,norm,lr,speed
scripts=$(dirname "$0")
. "$scripts/logs.sh"

awk -F, -v script="$script" -v panel_list="$panels" "$read_columns $(cat "$scripts/svg.awk")"'
BEGIN {
    title["loss"] = "Loss, nats"
    title["norm"] = "Gradient norm"
    title["lr"] = "Learning rate"
    title["speed"] = "Tokens per second"
    column_of["loss"] = "loss"; column_of["norm"] = "norm"; column_of["lr"] = "lr"; column_of["speed"] = "tokens_per_s"
    panels = split(panel_list, panel, ",")
    for (p = 1; p <= panels; p++)
        if (!(panel[p] in title)) stop("--y " panel[p] ": want loss, norm, lr, speed or all")
}

# ---- reading: rows of a curve, x_at and y_at of each; y "" = unknown

function add_row(what, x, y,   n) {
    n = ++rows[what, runs]
    x_at[what, runs, n] = x
    y_at[what, runs, n] = is_number(y) ? y + 0 : ""
    if (is_number(y)) known[what, runs] = 1
}
FNR == 1 {
    want_columns("step loss", "a log of training steps")
    path[++runs] = FILENAME
    name[runs] = clean_text(name_of(FILENAME))
    floor[runs] = setting_comment(FILENAME, "floor")
    next
}
!is_number(cell("step")) { next }                                # an incomplete row after a kill
{
    x = cell("step") + 0
    if (!x_seen++ || x < first_x) first_x = x
    if (x_seen == 1 || x > last_x) last_x = x
    for (p = 1; p <= panels; p++) add_row(panel[p], x, cell(column_of[panel[p]]))
    if (is_number(cell("val_loss"))) add_row("validation", x, cell("val_loss"))
}
is_number(cell("loss")) { has_loss[runs] = 1 }

# ---- drawing

function value_text(what, y) {
    if (what == "loss" || what == "validation") return sprintf("%.4f", y)
    return what == "speed" ? count_text(sprintf("%.4g", y) + 0, y) : number_text(y, y)
}

function add_curves(p, what, r,   n, points, k, is_smooth) {
    n = rows[what, r]
    is_smooth = what == "loss" || what == "norm"
    points = thin(what SUBSEP r, n, what == "lr")
    if (what == "loss") widest = larger(widest, (2 * int(points / 100) + 1) * per)
    for (k = 1; k <= points; k++) x_of_point[k] = x_at[what, r, k * per < n ? k * per : n]
    if (is_smooth) {
        begin_curve(p, "raw", r)
        for (k = 1; k <= points; k++) {
            add_point(x_of_point[k], low[k])
            if (per > 1) add_point(x_of_point[k], high[k])
        }
    }
    begin_curve(p, what == "validation" ? "val" : "curve", r)
    for (k = 1; k <= points; k++)
        add_point(x_of_point[k], !seen[k] ? "" : is_smooth ? running_mean(k, points) : mean[k])
    label_curve((what == "validation" ? what : name[r]) " " value_text(what, end_y[curves]))
}
function add_panel(p, what,   r, drawn) {
    for (r = 1; r <= runs; r++) {
        if (known[what, r]) add_curves(p, what, r)
        if (what != "loss") continue
        if (known["validation", r]) { add_curves(p, "validation", r); dots = "; points: validation" }
        if (!is_number(floor[r]) || (floor[r] + 0) in drawn) continue
        drawn[floor[r] + 0]
        add_level(p, floor[r] + 0)
        label_curve("floor " value_text(what, floor[r]))
    }
    if (!(p in lowest)) stop("--y " what ": no run has such values")
}
function draw_panel(p, what,   i, tick, margin) {
    margin = (highest[p] - lowest[p]) * 0.06
    if (margin < 1e-6 * highest[p]) margin = 0.05 * highest[p]
    if (margin <= 0) margin = 1
    y_from = what == "lr" || what == "speed" || (lowest[p] >= 0 && lowest[p] < margin) ? 0 : lowest[p] - margin
    y_to = highest[p] + margin
    write_text(left, top - 10, "panel", "start", title[what])
    draw_y_axis(what == "loss" ? 7 : 4)
    draw_x_axis(p < panels ? "" : "step")
    tick = larger(round_step(x_to - x_from, plot_width > 500 ? 8 : 5), 1)
    for (i = round_up(x_from / tick); i * tick <= x_to; i++)
        draw_x_tick(i * tick, p < panels ? "" : count_text(i * tick, last_x))
    draw_curves(p)
}

END {
    if (failed) exit 1
    for (r = 1; r <= runs; r++) {
        all += has_loss[r]
        if (!has_loss[r]) print script ": " shown(path[r]) ": no row with a loss yet" | "cat >&2"
    }
    if (!all) exit 1
    x_from = first_x <= 1 + (last_x - first_x) / 20 && last_x > 20 ? 0 : first_x
    x_to = last_x > x_from ? last_x : x_from + 1
    for (p = 1; p <= panels; p++) {
        add_panel(p, panel[p])
        plot_heights += panel_height[p] = panels == 1 ? 348 : panel[p] == "loss" ? 260 : 130
    }
    width = 860; left = 76; top = 96
    plot_width = width - left - 52 - 7 * longest_label
    begin_page(width, top + plot_heights + 44 * (panels - 1) + 56, "Training curves",
        (widest > 1 ? "thin: each step; bold: mean of up to " widest " steps" : "line: each step") dots, left)
    for (p = 1; p <= panels; p++) {
        plot_height = panel_height[p]
        draw_panel(p, panel[p])
        top += plot_height + 44
    }
    print "</svg>"
}' "$@"
