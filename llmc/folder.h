/* llmc/folder.h - OUT, the folder of one run: nobody else writes there while it goes on. */
#ifndef LLMC_FOLDER_H
#define LLMC_FOLDER_H

typedef struct {
    const char *path;
    int         locked;
    int         lock;          /* the folder that was locked, open */
} Folder;

/* Before anybody looks into it: a run that ends meanwhile changes what is there. Fails in a line while another process
   has it; once locked it stays so. Not there yet is fine. */
void folder_lock(Folder *folder);

/* Fails in a line where a model or a log is there already. */
void folder_require_new(const Folder *folder);

/* Makes it where it is missing, and signs it; from here on the run writes. */
void folder_open(Folder *folder);

/* Where that folder was moved or removed since, another is made and locked, and signed: fails in a line where another
   process has it. What was locked stays so. */
void folder_keep(Folder *folder);

#endif
