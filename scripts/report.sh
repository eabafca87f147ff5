# report.sh - plot_loss.sh --html, which sources it: the page of llmc/report/report_page.html for several runs, whose
# data it makes of their logs as llmc/report/report_page.c does; samples and warnings: of the report.html beside a log.
data=$(awk -F, -v script="$script" -v now="$(date +%s)" "$read_columns"'
BEGIN {
    columns = split("step seconds tokens loss loss_min loss_max val_loss norm lr tokens_per_s temperature_c power_w", \
        name, " ")
    split("last last last mean min max last mean last mean last last", kept, " ")
    max_points = 1000
}

# ---- Series: 1 = steps, 2 = validations, 3 = the last step; a point is of per[s] steps, pairs are merged when there
# are too many

function merge(s, to, a, b,   c, x, y) {
    for (c = 1; c <= columns; c++) {
        x = value[s, a, c]; y = value[s, b, c]
        if (x == "" || y == "") x = x y
        else if (kept[c] == "last" || (kept[c] == "min" && y < x) || (kept[c] == "max" && y > x)) x = y
        else if (kept[c] == "mean") x += (y - x) * steps[s, b] / (steps[s, a] + steps[s, b])
        value[s, to, c] = x
    }
    steps[s, to] = steps[s, a] + steps[s, b]
}
function add_point(s,   c, i, n) {
    n = ++points[s]
    for (c = 1; c <= columns; c++) value[s, n, c] = row[c]
    steps[s, n] = 1
    if (n > 1 && steps[s, n - 1] < per[s]) merge(s, points[s] = n - 1, n - 1, n)
    else if (n > max_points) {
        per[s] *= 2
        for (i = 1; i <= max_points / 2; i++) merge(s, i, 2 * i - 1, 2 * i)
        points[s] = i
        for (c = 1; c <= columns; c++) value[s, i, c] = value[s, n, c]
        steps[s, i] = 1
    }
}
function write_series(s,   i, c) {
    for (i = 1; i <= points[s]; i++) {
        printf("%s", i > 1 ? ",\n[" : "[")
        for (c = 1; c <= columns; c++)
            printf("%s%s", c > 1 ? "," : "", value[s, i, c] == "" ? "null" : sprintf("%.9g", value[s, i, c]))
        printf "]"
    }
}

# ---- Text

function json_text(text,   i, c, out) {
    for (i = 1; i <= length(text); i++) {
        c = substr(text, i, 1)
        if (c == "\\" || c == "\"") c = "\\" c
        else if (c == "<") c = "\\u003c"
        else if (c < " ") c = c == "\n" ? "\\n" : " "
        out = out c
    }
    return out
}
function write_run(path,   file, line, found, is_last, notes, status, total) {
    printf "%s{\"name\": \"%s\",\n\"settings\": \"", runs++ ? ",\n" : "[", json_text(name_of(path))
    file = path
    sub(/[^\/]*$/, "settings.txt", file)
    while ((getline line < file) > 0) {
        printf "%s\\n", json_text(line)
        if (line ~ /^steps = [0-9]+$/) total = substr(line, 9)
    }
    close(file)
    status = "\"\""
    sub(/[^\/]*$/, "report.html", file)
    printf "\",\n\"notes\": ["
    while ((getline line < file) > 0) {
        if (line ~ /^"status": /) { status = line; sub(/^"status": /, "", status); sub(/,$/, "", status) }
        if (sub(/^"notes": \[/, "", line)) found = 1
        if (!found) continue
        is_last = sub(/\][}]\]$/, "", line)             # in a text it is followed by a quotation mark
        if (line !~ /^[{]"step": [0-9]+, "kind": "[a-z]+", "text": ".*"[}],?$/) break
        notes = notes line "\n"
        if (is_last) break
    }
    close(file)
    sub(/,\n$/, "\n", notes)                           # of a page that was cut short
    printf "%s", notes
    if (status == "\"running\"") status = "\"running at the time of this page\""
    printf "],\n\"total\": %d,\n\"updated\": %s,\n\"status\": %s,\n\"columns\": [", total, now, status
    for (c = 1; c <= columns; c++) printf("%s\"%s\"", c > 1 ? ", " : "", name[c])
    printf "],\n\"rows\": ["
    write_series(1)
    printf "],\n\"validations\": ["
    write_series(2)
    printf "],\n\"last\": ["
    write_series(3)
    printf "]}"
}

FNR == 1 {
    if (path != "") write_run(path)
    want_columns("step loss", "a log of training steps")
    path = FILENAME
    points[1] = points[2] = points[3] = 0
    per[1] = per[2] = 1
    pending = ""
}
is_number(cell("step")) {
    if (is_json && is_number(cell("val_loss"))) pending = cell("val_loss")      # in front of its step
    if (cell("loss") == "") next
    for (c = 1; c <= columns; c++) row[c] = is_number(cell(name[c])) ? cell(name[c]) + 0 : ""
    row[5] = row[6] = row[4]
    if (pending != "") { row[7] = pending + 0; pending = "" }
    if (row[7] != "") add_point(2)
    row[7] = ""
    add_point(1)
    points[3] = 0
    add_point(3)
}
END {
    if (failed) exit 1
    write_run(path)
    print "]"
}' "$@") && cat "$scripts/../llmc/report/report_page.html" && printf '%s\n</script>\n' "$data"
