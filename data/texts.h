/* texts.h - Text files as documents, read in batches of bounded size, for tokenize. */
#pragma once
#include "../llmc/text/bpe.h"
#include "../llmc/tokens/data_files.h"

/* A part of a text; begins: the end-of-text token, if there is one, goes in front of it. start: the bytes of the spans
   before it, and one more for each, which bounds the number of their tokens; tokens: its number, set when encoded. */
typedef struct { const unsigned char *text; size_t size, start, tokens; int begins; } BpeSpan;

typedef struct {
    const char  *const *path;
    FileMap     *map;               /* one per file, until texts_close */
    int          count;             /* number of files */
    DocumentKind kind;
    const char  *field;             /* JSONL: name of the member with the text */
    int64_t      bytes;             /* size of all files */
    int64_t      stop;              /* a batch ends at the first document, or part of one, from here on */
    int64_t      done, documents;   /* read so far */
    BpeSpan     *span;              /* the batch: document by document, long ones in parts that can be encoded alone */
    size_t       span_count;
    size_t       batch_bytes;       /* >= the tokens of the batch: one per byte and one more per span */
    /* for texts.c alone */
    int          file;              /* the current one */
    size_t       at;                /* where the next document begins in it */
    FileLine     line;              /* documents that are lines or JSONL: the last line read */
    const unsigned char *text;      /* rest of the document */
    size_t       left, tail;        /* bytes of the rest; bytes of the file that count as read at its end */
    int          begins, is_after_mark;     /* no part of it is in a batch yet; the last read was a mark or nothing */
    struct Json *json;              /* values of the batch, a list by next */
    size_t       span_room;
} Texts;

/* Fails on a file that is missing or of a binary format. text_check is not called. */
Texts texts_open(const char *const *path, int count, DocumentKind kind, const char *field);

/* The next batch, of 16 MiB or one document part if that is longer; it is valid until the next call. 0 = the end.
   Fails, with file and line, on a line that is not JSON or lacks the field. */
int  texts_next(Texts *texts);
void texts_close(Texts *texts);
