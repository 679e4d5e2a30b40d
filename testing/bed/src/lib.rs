//! What every test bed shares: where built tools are kept ([`Cache`]), how a missing one is told
//! of ([`Missing`]), tests that need what a machine may lack ([`trials`]), and decisions that are
//! written as text ([`cases`]).

mod cache;
pub mod cases;
mod missing;
mod selection;
pub mod trials;

pub use cache::Cache;
pub use missing::Missing;
pub use selection::Selection;
