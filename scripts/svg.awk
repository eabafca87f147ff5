# svg.awk - Drawing for plot_loss.sh and plot_attention.sh: the page, text, the axes of a panel, and labels at
# the ends of curves. A panel is left, top, plot_width, plot_height and the ranges x_from, x_to, y_from, y_to.

# Curves differ in colour and in dashes, points in their shape: without colours they still can be told apart.
BEGIN {
    split("#2563eb #dc5f1f #0d9668 #9333ea #c8215d #0e7f9f #8a6d0b #57606a", palette, " ")
    split("none;7 4;2 4;10 4 2 4;14 5;4 3;8 3 2 3 2 3;1 3", dashes, ";")
}
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
    print ".raw { stroke-width: 0.8; stroke-opacity: 0.28 } .val { stroke-width: 1.2; stroke-dasharray: 1 3.5 }"
    print ".dot { fill: #fff; stroke-width: 1.6 }"
    print ".grid { stroke: #e8ebee; stroke-width: 1 } .axis { stroke: #8c959f; stroke-width: 1 }"
    print ".floor { stroke: #6e7781; stroke-width: 1.2; stroke-dasharray: 6 4 }"
    print ".lead { stroke-width: 1; stroke-opacity: 0.45 }"
    print "</style>"
    print "<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>"
    write_text(x, 34, "title", "start", title)
}

# ---- text

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

# ---- axes

function see(y) {
    if (!values_seen++) lowest = highest = y
    if (y < lowest) lowest = y
    if (y > highest) highest = y
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

# ---- labels right of the panel, joined to the ends of their curves

# curve: its number, whose dashes are shown before the text; 0 = none.
function add_label(x, y, text, colour, style, curve) {
    labels++
    label_x[labels] = x; label_y[labels] = y; label_text[labels] = text
    label_colour[labels] = colour; label_style[labels] = style; label_curve[labels] = curve
    if (length(text) > longest) longest = length(text)
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
        printf "<path class=\"lead\" stroke=\"%s\" d=\"M%.1f,%.1f H%.1f L%.1f,%.1f\"/>\n", label_colour[i],
            x_of(label_x[i]) + 5, y_of(label_y[i]), left + plot_width + 6, left + plot_width + 14, place[i]
        if (label_curve[i])
            printf("<path %s stroke-width=\"2\" d=\"M%.1f,%.1f h20\"/>\n", stroke_of(label_curve[i]),
                left + plot_width + 16, place[i])
        write_text(left + plot_width + (label_curve[i] ? 42 : 18), place[i] + 4, label_style[i], "start", label_text[i],
            label_colour[i])
    }
    labels = 0
}
