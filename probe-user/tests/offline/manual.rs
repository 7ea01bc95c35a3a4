//! `docs/rules.md` is what the rules themselves say.

use std::path::Path;

use probe_user::doctor::all_pages;

#[test]
fn the_manual_of_the_rules_is_that_of_the_code() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/rules.md");
    let pages = all_pages();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, &pages).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        committed == pages,
        "docs/rules.md differs from the rules: run the tests once with UPDATE_DOCS=1"
    );
}
