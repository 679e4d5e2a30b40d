//! What every test bed shares: where built tools are kept ([`Cache`]), how a missing one is told
//! of ([`Missing`]), and tests that need what a machine may lack ([`trials`]).

mod cache;
mod missing;
mod selection;
pub mod trials;

pub use cache::Cache;
pub use missing::Missing;
pub use selection::Selection;
