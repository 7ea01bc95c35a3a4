//! What BPF programs are told of the functions they cannot call: where whose completion entry it is stands in memory.

use aya::maps::{Array, MapData};
use probe_common::recipe::{RECIPES, Recipe};

use crate::collect::wire::PlainRecipe;

/// The table of recipes, which grows.
pub struct Recipes {
    table: Array<MapData, PlainRecipe>,
    written: Vec<Recipe>,
}

impl Recipes {
    /// Nothing in the table yet.
    pub fn new(table: Array<MapData, PlainRecipe>) -> Self {
        // Place 0 is that of nothing known.
        Self { table, written: vec![Recipe::default()] }
    }

    /// The place of a recipe, for the cookie of a probe; 0 where it tells nothing, or the table is full.
    pub fn place_of(&mut self, recipe: &Recipe) -> u64 {
        let known = self.written.iter().position(|written| written == recipe);
        let place = known.unwrap_or(self.written.len());
        if known.is_none() {
            let index = u32::try_from(place).ok().filter(|_| place < RECIPES);
            let put = index.map(|index| self.table.set(index, PlainRecipe(*recipe), 0));
            if !matches!(put, Some(Ok(()))) {
                return 0;
            }
            self.written.push(*recipe);
        }
        place as u64
    }
}
