/* program.h - The options of train_gpt itself. */
#ifndef TEST_FUZZ_PROGRAM_H
#define TEST_FUZZ_PROGRAM_H

void program_read_options(int argc, char **argv);
void program_read_settings(void);                  /* of C/state.json, then the plan of its model, as a resume does */

#endif
