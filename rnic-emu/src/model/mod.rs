//! Timing model of an RNIC: work request in, completion time and its cost out. No clock, no threads, no I/O.
