//! What a model says, for a person (text) and for a program (JSON).
