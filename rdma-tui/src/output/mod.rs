//! What is on screen, elsewhere: as text, as JSON, as a picture, on the clipboard.

pub mod clipboard;
pub mod json;
pub mod svg;
pub mod text;
