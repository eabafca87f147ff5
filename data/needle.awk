# data/needle.awk - A text that only a long context can predict, from one of data/tales: after every tale a word is
# told, and one that was told 1, 2, 4, .. or `far` tales before is recalled.
#
#     Remember: qvxka is blmot.
#     Recall: rtyui is zzkqp.
#
# A tale has some 600 bytes with these lines: 64 tales are about 38,000. Names and words are five random letters, so a
# model that does not see where a word was told has 1 chance in 11.9 million. Writes the text to stdout and
# `items` questions, each about a word told almost `far` tales before, to `file`, for --eval --task multiple-choice: the
# choices are the word and three others of the same context, so that a guess is right in one of four.
#
#     awk -f data/needle.awk -v far=64 -v seed=1 TALES/train.txt > train.txt
#     awk -f data/needle.awk -v far=64 -v seed=2 -v items=100 -v file=items.jsonl TALES/val.txt > val.txt
function random(n) {            # 0 .. n - 1; Lehmer's generator: the same in every awk
    state = state * 48271 % 2147483647
    return int(state / 2147483647 * n)
}
function letters(    i, text) {
    for (i = 0; i < 5; i++) text = text substr("abcdefghijklmnopqrstuvwxyz", random(26) + 1, 1)
    return text
}
# The tales from about `far` back on, up to a question about the first word that was not recalled yet: a line of JSON.
function write_item(    first, i, text, right, at) {
    for (first = tale - far; first in recalled; first++) ;
    for (i = first; i <= tale; i++) text = text tales[i]
    gsub(/\\/, "&&", text)
    gsub(/"/, "\\\"", text)
    gsub(/\n/, "\\n", text)
    right = random(4)
    printf "{\"context\": \"%sRecall: %s is\", \"choices\": [", text, name[first] > file
    for (i = 0; i < 4; i++) {
        at = i == right ? first : first + 3 * random(int((tale - first) / 3)) + (i + 4 - right) % 4
        printf "%s\"%s.\"", i ? ", " : "", word[at] > file
    }
    printf "], \"label\": %d}\n", right > file
    written++
}
BEGIN {
    RS = ""
    if (far < 4) { print "needle.awk: -v far=N: want 4 tales or more" > "/dev/stderr"; exit 1 }
    state = 1 + seed * 7919 % 2147483646
    for (i = 0; i < 20; i++) random(2)
    for (powers = 1; 2 ^ powers <= far; powers++) ;
}
{
    tale++
    name[tale] = letters()
    word[tale] = letters()
    text = $0 "\n\nRemember: " name[tale] " is " word[tale] ".\n"
    tales[tale] = text
    if (tale > far && written < items && tale % int(far / 4) == 0) write_item()
    told = tale - 2 ^ (tale % powers)
    if (told > 0) recalled[told]
    if (told > 0) text = text "Recall: " name[told] " is " word[told] ".\n"
    tales[tale] = text "\n"
    delete tales[tale - far - 1]
    printf "%s", tales[tale]
}
