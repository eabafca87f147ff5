#!/bin/sh
# plot_loss.sh RUN... > curves.svg - Draws the losses of one or more runs over their steps. RUN is a run's directory or
# its log.csv. Each step is thin, the running mean bold, the validation loss dotted, and the floor dashed where
# settings.txt beside the log gives it ("# floor: 0.4321"). Long runs are thinned as in report.html, which also shows
# gradient norm, learning rate and speed, over tokens and time, too.
usage="usage: scripts/plot_loss.sh RUN... > curves.svg"
case ${1-} in
--help|-h) echo "$usage"; echo; sed -n '2,/^usage=/s/^# \{0,1\}//p' "$0"; exit ;;
""|-*) echo "$usage   (--help explains)" >&2; exit 1 ;;
esac
scripts=$(dirname "$0")
. "$scripts/logs.sh"

awk -F, -v script="$script" "$read_columns $(cat "$scripts/svg.awk")"'
# ---- reading: rows of a curve, x_at and y_at of each; y "" = unknown

function add_row(what, x, y,   n) {
    n = ++rows[what, runs]
    x_at[what, runs, n] = x
    y_at[what, runs, n] = is_number(y) ? y + 0 : ""
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
    add_row("loss", x, cell("loss"))
    if (is_number(cell("val_loss"))) add_row("validation", x, cell("val_loss"))
}
is_number(cell("loss")) { has_loss[runs] = 1 }

# ---- drawing

function label(text, y) { label_curve(text " " sprintf("%.4f", y)) }
function add_curves(what, r,   n, points, k) {
    n = rows[what, r]
    points = thin(what SUBSEP r, n)
    for (k = 1; k <= points; k++) x_of_point[k] = x_at[what, r, k * per < n ? k * per : n]
    if (what == "loss") {
        widest = larger(widest, (2 * int(points / 100) + 1) * per)
        begin_curve(1, "raw", r)
        for (k = 1; k <= points; k++) {
            add_point(x_of_point[k], low[k])
            if (per > 1) add_point(x_of_point[k], high[k])
        }
    }
    begin_curve(1, what == "loss" ? "curve" : "val", r)
    for (k = 1; k <= points; k++)
        add_point(x_of_point[k], !seen[k] ? "" : what == "loss" ? running_mean(k, points) : mean[k])
    label(what == "loss" ? name[r] : what, end_y[curves])
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
    for (r = 1; r <= runs; r++) {
        if (has_loss[r]) add_curves("loss", r)
        if (("validation", r) in rows) { add_curves("validation", r); dots = "; points: validation" }
        if (!is_number(floor[r]) || (floor[r] + 0) in drawn) continue
        drawn[floor[r] + 0]
        add_level(1, floor[r] + 0)
        label("floor", floor[r])
    }
    width = 860; left = 76; top = 96
    plot_width = width - left - 52 - widest_label; plot_height = 348
    begin_page(width, top + plot_height + 56, "Training curves",
        (widest > 1 ? "thin: each step; bold: mean of up to " widest " steps" : "line: each step") dots, left)
    margin = (highest[1] - lowest[1]) * 0.06
    if (margin < 1e-6 * highest[1]) margin = 0.05 * highest[1]
    if (margin <= 0) margin = 1
    y_from = lowest[1] >= 0 && lowest[1] < margin ? 0 : lowest[1] - margin
    y_to = highest[1] + margin
    write_text(left, top - 10, "panel", "start", "Loss, nats")
    draw_y_axis(7)
    draw_x_axis("step")
    tick = larger(round_step(x_to - x_from, plot_width > 500 ? 8 : 5), 1)
    for (i = round_up(x_from / tick); i * tick <= x_to; i++) draw_x_tick(i * tick, count_text(i * tick, last_x))
    draw_curves(1)
    print "</svg>"
}' "$@"
