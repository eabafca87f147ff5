#include "terminal.h"
#include "../../kernels/check.h"
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

static int columns_in_place;        /* width of the line that the next one overwrites; 0 = none */

void end_line_in_place(void) {
    if (columns_in_place) putchar('\n');
    columns_in_place = 0;
    fflush(stdout);
}

/* The last column stays free: some terminals wrap when it is filled. Two blanks separate fields: those that do not fit
   are left out whole, as "9.7e-0" would be another number. */
void print_in_place(const char *text) {
    struct winsize size;
    int columns = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1 ? size.ws_col - 1 : 79;
    int end = (int)strlen(text) > columns ? columns : 0;
    while (end && strncmp(text + end, "  ", 2)) end--;
    printf("\r%*s\r", columns_in_place, "");
    columns_in_place = printf("%.*s", end ? end : columns, text);
    fflush(stdout);
}

void print_line(FILE *file, const char *format, ...) {
    char *text;
    va_list arguments;
    va_start(arguments, format);
    REQUIRE(vasprintf(&text, format, arguments) >= 0, "out of memory: a line of output");
    va_end(arguments);
    make_printable(text);
    end_line_in_place();
    fprintf(file, "%s%s%s\n", file == stderr ? fail_program : "", file == stderr ? ": " : "", text);
    fflush(file);
    free(text);
}
