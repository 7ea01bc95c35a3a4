//! Rules that no machine at hand can make true, and those on figures that only some sources know, on made-up
//! observations; what they must be silent on beside each.

mod case;
mod connection;
mod errors;
mod host;
mod judging;
mod leaks;
mod posting;
mod registration;
mod unseen;
