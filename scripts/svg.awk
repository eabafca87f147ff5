# svg.awk - Drawing for plot_loss.sh and plot_attention.sh: curves with a label at their end, in panels. A panel is
# left, top, plot_width, plot_height and the ranges x_from, x_to, y_from, y_to. The background is transparent: text and
# curves have a contrast of 3.9 or more to white and to #0d1117, a dark page. Curves differ in colour and in dashes.
BEGIN {
    split("#3a7eea #d0590f #12906a #a050e6 #d9447a #1488a8 #94760f #78818b", palette, " ")
    split("none;7 4;2 4;10 4 2 4;14 5;4 3;8 3 2 3 2 3;1 3", dashes, ";")
}
function colour_of(i) { return palette[i ? (i - 1) % 8 + 1 : 8] }
function stroke_of(i) { return "stroke=\"" colour_of(i) "\" stroke-dasharray=\"" dashes[(i - 1) % 8 + 1] "\"" }

function begin_page(width, height, title, subtitle, x) {
    printf "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\" fill=\"none\" ",
        width, height, width, height
    print "font-family=\"Inter, Helvetica Neue, Helvetica, Arial, Liberation Sans, DejaVu Sans, sans-serif\">"
    print "<style>"
    print "text { font-size: 12px; fill: #78818b } .title { font-size: 18px; font-weight: 600 }"
    print ".panel { font-size: 13.5px; font-weight: 600 } .bold { font-size: 12.5px; font-weight: 600 }"
    print "path { stroke-linejoin: round; stroke-linecap: round } .curve { stroke-width: 2 }"
    print ".grid { stroke: #8c959f; stroke-opacity: 0.25 } .axis { stroke: #8c959f } .lead { stroke-opacity: 0.45 }"
    print ".raw { stroke-width: 0.8; stroke-opacity: 0.35 } .val { stroke-width: 1.2; stroke-dasharray: 1 3.5 }"
    print ".floor { stroke-width: 1.2; stroke-dasharray: 6 4 }"
    print "</style>"
    write_text(x, 34, "title", "start", title)
    write_text(x, 55, "subtitle", "start", subtitle)
}

# ---- text and numbers

# Valid UTF-8, at most 30 bytes.
function clean_text(text,   rest) {
    if (length(text) > 30) {
        text = substr(text, 1, 27)
        sub(/[\300-\377]?[\200-\277]*$/, "", text)               # no part of a character
        text = text "\342\200\246"
    }
    rest = text
    gsub(/[\302-\337][\200-\277]|\340[\240-\277][\200-\277]|\355[\200-\237][\200-\277]/, "", rest)
    gsub(/[\341-\354\356\357][\200-\277][\200-\277]|\360[\220-\277][\200-\277][\200-\277]/, "", rest)
    gsub(rest ~ /[\200-\377]/ ? "[^ -~]" : "[\001-\037\177]", "?", text)
    return text
}
function write_text(x, y, class, anchor, text, fill) {
    if (text == "") return
    gsub(/&/, "\\&amp;", text); gsub(/</, "\\&lt;", text); gsub(/>/, "\\&gt;", text)
    printf("<text x=\"%.1f\" y=\"%.1f\" class=\"%s\" text-anchor=\"%s\"%s>%s</text>\n", x, y, class, anchor,
        fill == "" ? "" : " style=\"fill: " fill "\"", text)
}
# About the pixels of a label in the widest of the fonts, DejaVu Sans Bold.
function text_width(text,   narrow, wide) {
    narrow = gsub(/[ !(),.:;fijlrtIJ|-]/, "", text)
    wide = gsub(/[mwMW%@]/, "", text)
    return 12.5 * (0.45 * narrow + 1.06 * wide + 0.71 * length(text))
}
# A count in the unit that suits the largest one beside it.
function count_text(count, largest) {
    if (largest < 1e4 || !count) return sprintf("%.7g", count)
    if (largest < 1e7) return sprintf("%.7gk", count / 1e3)
    return largest < 1e10 ? sprintf("%.7gM", count / 1e6) : sprintf("%.7gG", count / 1e9)
}

# ---- axes

function x_of(x) { return left + (x - x_from) / (x_to - x_from) * plot_width }
function y_of(y) { return top + (y_to - y) / (y_to - y_from) * plot_height }
function round_up(x) { return x > int(x) ? int(x) + 1 : int(x) }
function larger(a, b) { return a > b ? a : b }

# The round step (1, 2 or 5 times a power of ten) that cuts the range into at most so many parts.
function round_step(range, parts,   power, s) {
    for (power = 1; power * parts > range; ) power /= 10
    for (; ; power *= 10)
        for (s = 1; s <= 5; s += s == 2 ? 3 : 1)
            if ((s == 1 || s == 2 || s == 5) && s * power * parts >= range * 0.9999) return s * power
}
# Grid lines and their values.
function draw_y_axis(parts,   i, t, tick, digits, y) {
    tick = round_step(y_to - y_from, parts)
    digits = 0
    for (t = tick; t < 0.9999 && digits < 7; t *= 10) digits++
    for (i = round_up(y_from / tick); i * tick <= y_to; i++) {
        y = i * tick
        printf "<path class=\"grid\" d=\"M%.1f,%.1f h%.1f\"/>\n", left, y_of(y), plot_width
        write_text(left - 9, y_of(y) + 4, "tick", "end", y ? sprintf("%." digits "f", y) : 0)
    }
}
function draw_x_axis(name) {
    printf "<path class=\"axis\" d=\"M%.1f,%.1f h%.1f\"/>\n", left, top + plot_height, plot_width
    write_text(left + plot_width / 2, top + plot_height + 42, "name", "middle", name)
}
function draw_x_tick(x, text) {
    printf "<path class=\"axis\" d=\"M%.1f,%.1f v5\"/>\n", x_of(x), top + plot_height
    write_text(x_of(x), top + plot_height + 20, "tick", "middle", text)
}

# ---- curves

# kind: its classes: raw, floor, curve, val; the points of val and dots are marked. number: of its colour and dashes.
function begin_curve(p, kind, number) {
    curves++
    panel_of[curves] = p; kind_of[curves] = kind; number_of[curves] = number
}
# y "" interrupts the line. A raw point far above the rest may be clipped.
function add_point(x, y,   n, p) {
    n = ++size[curves]
    curve_x[curves, n] = x; curve_y[curves, n] = y
    if (y == "") return
    end_x[curves] = x; end_y[curves] = y
    p = panel_of[curves]
    if (!(p in lowest) || y < lowest[p]) lowest[p] = y
    if (kind_of[curves] != "raw" && (!(p in highest) || y > highest[p])) highest[p] = y
}
function add_level(p, y) {                                       # a line across the panel
    begin_curve(p, "floor", 0)
    add_point(x_from, y)
    add_point(x_to, y)
}
# note: why it ends before the others, a second line of the label
function label_curve(text, note) {
    note_of[curves] = note
    label_of[curves] = text
    widest_label = larger(widest_label, larger(text_width(text), text_width(note)))
}

function draw_curve(c,   kind, i, is_open) {
    kind = kind_of[c]
    printf "<path class=\"%s\" %s d=\"", kind, kind ~ /curve/ ? stroke_of(number_of[c]) : \
        "stroke=\"" colour_of(number_of[c]) "\""
    for (i = 1; i <= size[c]; i++) {                             # h0: a single point is a dot, by its round ends
        if (curve_y[c, i] != "")
            printf(is_open ? "L%.1f,%.1f" : "M%.1f,%.1fh0", x_of(curve_x[c, i]), y_of(curve_y[c, i]))
        is_open = curve_y[c, i] != ""
    }
    print "\"/>"
    if (kind ~ /val|dots/ && size[c] <= 100)
        for (i = 1; i <= size[c]; i++) printf "<circle class=\"dot\" fill=\"%s\" cx=\"%.1f\" cy=\"%.1f\" r=\"3.4\"/>\n",
            colour_of(number_of[c]), x_of(curve_x[c, i]), y_of(curve_y[c, i])
}
# At the right of the panel, joined to the ends of their curves, pushed apart from the top down and back up.
function draw_labels(p,   c, n, i, j, order, place, height, all, limit, x, colour) {
    for (c = 1; c <= curves; c++) {
        if (panel_of[c] != p || !(c in label_of)) continue
        place[c] = y_of(end_y[c])
        all += height[c] = note_of[c] == "" ? 17 : 32
        for (j = ++n; j > 1 && place[c] < place[order[j - 1]]; j--) order[j] = order[j - 1]
        order[j] = c
    }
    for (c in height) if (all > plot_height) height[c] *= plot_height / all
    for (i = 2; i <= n; i++) place[order[i]] = larger(place[order[i]], place[order[i - 1]] + height[order[i - 1]])
    limit = top + plot_height + 13
    x = left + plot_width
    for (i = n; i >= 1; i--) {
        c = order[i]
        if (place[c] > limit - height[c]) place[c] = limit - height[c]
        limit = place[c]
        colour = colour_of(number_of[c])
        # level inside the plot: a slope there would look like data
        printf "<path class=\"lead\" stroke=\"%s\" d=\"M%.1f,%.1f H%.1f L%.1f,%.1f\"/>\n", colour, x_of(end_x[c]) + 5,
            y_of(end_y[c]), x + 6, x + 14, place[c]
        if (kind_of[c] ~ /curve/)
            printf("<path %s stroke-width=\"2\" d=\"M%.1f,%.1f h20\"/>\n", stroke_of(number_of[c]), x + 16, place[c])
        write_text(x + 42, place[c] + 4, kind_of[c] ~ /curve/ ? "bold" : "label", "start", label_of[c], colour)
        write_text(x + 42, place[c] + 19, "note", "start", note_of[c], colour)
    }
}
# The axes are drawn before.
function draw_curves(p,   c, k, kinds) {
    printf "<clipPath id=\"panel%d\"><rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"/></clipPath>\n", p,
        left - 4, top - 4, plot_width + 8, plot_height + 8
    printf "<g clip-path=\"url(#panel%d)\">\n", p
    split("raw floor curve val", kinds, " ")                     # from the back to the front
    for (k = 1; k <= 4; k++)
        for (c = 1; c <= curves; c++) if (panel_of[c] == p && index(kind_of[c], kinds[k]) == 1) draw_curve(c)
    print "</g>"
    draw_labels(p)
}
