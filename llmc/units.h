/* llmc/units.h - Seconds and bytes: the clock, and how people write them. */
#ifndef LLMC_UNITS_H
#define LLMC_UNITS_H

double seconds_now(void);         /* of the monotonic clock; may be called by a signal handler */

/* Seconds of "3h50m", "2d", "90s", "1.5h" or plain "3600"; -1 when it is no duration. */
double duration_seconds(const char *text);

const char *duration_text(double seconds, char text[32]);      /* "2d03h", "1h02m", "3m20s", "45s" */
const char *bytes_text(double bytes, char text[32]);           /* "1.50 GiB", "340 MiB" */

#endif
